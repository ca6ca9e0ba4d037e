// `pawl convert`: any checkpoint into safetensors, a Hugging Face folder, a folder of PyTorch DCP or DeepSpeed's
// universal one.
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/formats/deepspeed/universal_writer.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/output/partial_output.h"
#include "checkpoint/reshape/compare_copies.h"
#include "cli/checkpoint/access.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/convert_plan.h"
#include "cli/checkpoint/convert_proof.h"
#include "cli/checkpoint/convert_target.h"
#include "cli/checkpoint/convert_workers.h"
#include "cli/checkpoint/model_config.h"
#include "cli/checkpoint/progress.h"
#include "cli/checkpoint/text.h"
#include "cli/exit_codes.h"
#include "cli/output.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

using To = ConvertOptions::To;

struct Conversion {
  CheckpointView view;  // under its final names
  std::optional<Family> family;
  std::optional<ModelConfig> config;
  OutputPlan plan;
  ExecuteReport report;
  std::vector<std::string> damage;  // sentences: what of the source was damaged, and was converted all the same
  bool is_partial = false;          // something of the source is missing, damaged or left out
  double seconds = 0;
};

// `is_whole`: nothing is missing or damaged, but something needs a word of the person's.
Error incomplete(const std::vector<std::string>& problems, bool is_whole) {
  return Error{is_whole ? Code::invalid : Code::corrupt,
               text("the checkpoint is incomplete and was not converted: ", first_few(problems),
                    " (--despite-problems converts the tensors that are complete)")};
}

Error not_supported(const std::vector<std::string>& tensors) {
  return Error{Code::invalid, text("these tensors cannot be converted: ", first_few(tensors),
                                   " (--skip-unsupported leaves them out)")};
}

// Names as Hugging Face has them, where the family is known by its names or told.
Status rename(const ConvertOptions& options, Conversion& conversion) {
  FamilySettings settings = options.family;
  if (conversion.config) {
    Result<FamilySettings> told = settings_of_config(conversion.config->text, settings);
    if (!told && !options.config_file.empty()) return std::move(told).error().within(options.config_file);
    if (told) settings = *told;
  }
  const bool is_asked = settings.family.has_value();
  if (!is_asked && (options.keep_names || options.to != To::huggingface)) return {};
  if (!is_asked) settings.family = family_of_megatron(conversion.view);
  if (!settings.family) return {};
  conversion.family = settings.family;
  Result<CheckpointView> renamed = to_huggingface(conversion.view, settings);
  if (!renamed)
    return std::move(renamed).error().within(
        text("names of ", name_of(*settings.family), " for Hugging Face", is_asked ? "" : " (or pass --keep-names)"));
  conversion.view = std::move(*renamed);
  return {};
}

// `of_plan`: the tensors that are compared.
Status check_replicas(const ConvertOptions& options, const Conversion& conversion,
                      const std::vector<std::uint32_t>& of_plan) {
  const CheckpointView& view = conversion.view;
  if (options.trusted_replica) {
    for (const StoredTensor& tensor : view.tensors)
      for (const StoredPiece& piece : tensor.pieces)
        if (piece.copy == *options.trusted_replica) return {};
    return Error{Code::not_found,
                 text("--trust-replica ", *options.trusted_replica, ": no tensor has a copy with that number")};
  }
  if (!has_copies(view)) return {};
  std::vector<std::uint32_t> tensors;
  for (const std::uint32_t tensor : of_plan) tensors.push_back(conversion.plan.tensors[tensor].tensor);
  PAWL_ASSIGN(const std::vector<CopyDifference> differences,
              compare_copies(view, tensors, execute_options(options.memory_bytes)));
  if (differences.empty()) return {};
  FirstFew what;
  for (const CopyDifference& difference : differences) what.add(sentence_of(difference, view));
  return Error{Code::corrupt, text("copies that should be equal differ: ", what.sentence(),
                                   ". Pass --trust-replica N to take copy N")};
}

std::vector<std::uint32_t> all_tensors(const OutputPlan& plan) {
  std::vector<std::uint32_t> all(plan.tensors.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Status write_all(const ConvertOptions& options, Conversion& conversion) {
  const OutputPlan& plan = conversion.plan;
  std::unique_ptr<ConvertOutput> written =
      options.to == To::pawl
          ? store_output(plan, conversion.view, options, worker_count(options), worker_memory(options))
          : files_output(plan, conversion.view, options, worker_count(options));
  PAWL_ASSIGN(const std::unique_ptr<ConvertOutput> output,
              proven_output(std::move(written), plan, conversion.view, options, conversion.damage));
  const auto check = [&](const std::vector<std::uint32_t>& tensors) {
    return check_replicas(options, conversion, tensors);
  };
  PAWL_ASSIGN(conversion.report, write_together(*output, options, plan, conversion.view, check));
  return {};
}

// The config.json beside a Hugging Face folder's weights, once it is proven that it describes them.
Status plan_config(const ConvertOptions& options, Conversion& conversion) {
  std::vector<std::string>& notes = conversion.plan.notes;
  if (!conversion.config) {
    if (!real_files().exists(join_path(options.target, "config.json")))
      notes.emplace_back(
          "the target has no config.json, because there is none beside the source: transformers needs the "
          "model's config.json (--config FILE copies it, and checks that the weights fit it)");
    return {};
  }
  const bool has_weights =
      options.roles.empty() || std::ranges::find(options.roles, std::string("weight")) != options.roles.end();
  const std::vector<std::string> differing =
      has_weights ? what_differs(*conversion.config, conversion.view, conversion.plan) : std::vector<std::string>();
  for (const std::string& what : differing) {
    if (!options.despite_problems && !options.keep_names)
      return Error{
          Code::corrupt,
          text(what,
               ". transformers would fill the missing weights with random values: pass --config FILE with the model's "
               "own config.json (--despite-problems converts anyway)")};
    notes.push_back(text("PROBLEM: ", what));
  }
  add_model_config(*conversion.config, conversion.plan);
  return {};
}

Status plan_huggingface_folder(const ConvertOptions& options, Conversion& conversion) {
  std::vector<std::string> notes;
  if (conversion.config && !options.keep_names) notes = fit_names(*conversion.config, conversion.view);
  PAWL_ASSIGN(conversion.plan, plan_conversion(conversion.view, options));
  conversion.plan.notes.insert(conversion.plan.notes.begin(), notes.begin(), notes.end());
  return plan_config(options, conversion);
}

Status plan(const ConvertOptions& options, Conversion& conversion) {
  if (options.to == To::huggingface) return plan_huggingface_folder(options, conversion);
  if (options.to != To::universal) {
    PAWL_ASSIGN(conversion.plan, plan_conversion(conversion.view, options));
    return {};
  }
  PAWL_ASSIGN(const WriteOptions write, write_options(options));
  PAWL_ASSIGN(UniversalOutput universal, plan_universal(std::move(conversion.view), write));
  conversion.plan = std::move(universal.plan);
  conversion.view = std::move(universal.view);
  return {};
}

Status convert(const ConvertOptions& options, Conversion& conversion) {
  const auto began = std::chrono::steady_clock::now();
  PAWL_TRY(check_no_address(options.target));
  PAWL_ASSIGN(conversion.view, open_proven(options.source, options.read));
  PAWL_TRY(check_target_is_no_source(conversion.view, options.source, options.target));
  const std::vector<std::string> problems = problems_for(conversion.view, options);
  const bool is_whole = std::ranges::all_of(problems, [&](const std::string& problem) {
    return std::ranges::find(conversion.view.unnamed, problem) != conversion.view.unnamed.end();
  });
  if (!problems.empty() && !options.despite_problems) return incomplete(problems, is_whole);
  if (options.to == To::huggingface || !options.config_file.empty()) {
    PAWL_ASSIGN(conversion.config, find_model_config(options, conversion.view));
  }
  PAWL_TRY(rename(options, conversion));
  const std::vector<std::string> left_out = take_out_unsupported(conversion.view, options);
  if (!left_out.empty() && !options.skip_unsupported) return not_supported(left_out);
  conversion.is_partial = !left_out.empty() || !is_whole;
  PAWL_TRY(plan(options, conversion));
  for (const std::string& what : left_out) conversion.plan.notes.push_back(text("LEFT OUT: ", what));
  for (const std::string& problem : problems) conversion.plan.notes.push_back(text("PROBLEM: ", problem));
  if (is_publisher(options))
    PAWL_TRY(PartialOutput::check(options.target, partial_options(conversion.plan, options.overwrite)));
  // That nothing is missing is known before anything is made.
  PAWL_TRY(check_output(conversion.plan, conversion.view, {.execution = {}, .trusted_copy = options.trusted_replica}));
  if (!options.worker || options.dry_run)  // else each looks at its share, once all of them are there
    PAWL_TRY(check_replicas(options, conversion, all_tensors(conversion.plan)));
  if (options.dry_run) return {};
  PAWL_TRY(write_all(options, conversion));
  for (const std::string& what : conversion.damage) conversion.plan.notes.push_back(text("PROBLEM: ", what));
  conversion.is_partial = conversion.is_partial || !conversion.damage.empty();
  conversion.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  for (const auto& [tensor, count] : conversion.report.overflowed) {
    const PlannedTensor& out = conversion.plan.tensors[tensor];
    conversion.plan.notes.push_back(
        text(out.key, ": ", count, " numbers are too large for ", name_of(out.type), " and became infinite"));
  }
  return {};
}

json document_of(const ConvertOptions& options, const Conversion& conversion) {
  json document = {{"source", options.source},
                   {"target", options.target},
                   {"format", conversion.view.format},
                   {"to", name_of(options.to)},
                   {"family", conversion.family ? json(name_of(*conversion.family)) : json()},
                   {"dry_run", options.dry_run},
                   {"tensors", conversion.plan.tensors.size()},
                   {"bytes", conversion.plan.all_bytes},
                   {"files", json::array()},
                   {"notes", conversion.plan.notes}};
  for (const PlannedFile& file : conversion.plan.files)
    document["files"].push_back({{"name", file.name}, {"bytes", file.size_bytes}});
  if (options.dry_run) return document;
  document["seconds"] = conversion.seconds;
  document["workers"] = worker_count(options);
  if (options.worker) document["worker"] = *options.worker;
  if (options.worker) document["bytes_written"] = conversion.report.bytes_written;
  document["bytes_read"] = conversion.report.bytes_read;
  return document;
}

std::string summary_of(const ConvertOptions& options, const Conversion& conversion) {
  const OutputPlan& plan = conversion.plan;
  if (!is_publisher(options) && !options.dry_run)
    return text("worker ", *options.worker, " of ", options.workers, " wrote its share of ", printable(options.target),
                ": ", bytes_text(conversion.report.bytes_written), "; worker 0 publishes the result\n");
  std::string out =
      text(options.dry_run ? "would write " : "wrote ", printable(options.target), ": ", plan.tensors.size(),
           plan.tensors.size() == 1 ? " tensor, " : " tensors, ", bytes_text(plan.all_bytes));
  if (plan.files.size() > 1) out += text(" in ", plan.files.size(), " files");
  if (conversion.family) out += text(", in Hugging Face's names for ", name_of(*conversion.family));
  out += text(", from ", printable(conversion.view.format));
  if (!options.dry_run && conversion.seconds > 0) out += text(", in ", fixed(conversion.seconds, 1), " s");
  out += "\n";
  for (std::size_t i = 0; i < plan.files.size() && options.dry_run && plan.files.size() > 1; ++i)
    out += text("  ", plan.files[i].name, "  ", bytes_text(plan.files[i].size_bytes), "\n");
  for (const std::string& note : plan.notes) out += text("note: ", printable(note), "\n");
  return out;
}

}  // namespace

int command_convert(const ConvertOptions& options) {
  (void)interrupted();
  Conversion conversion;
  if (const Status done = convert(options, conversion); !done) {
    const bool is_usage = done.error().code == Code::invalid && done.error().what.starts_with("--dtype");
    const int code = report_checkpoint_error(done.error(), options.json);
    return is_usage ? static_cast<int>(kExitUsage) : code;
  }
  if (options.json)
    print(json_text(document_of(options, conversion)) + "\n");
  else
    print(summary_of(options, conversion));
  return conversion.is_partial ? kExitDegraded : kExitOk;
}

}  // namespace pawl::checkpoint
