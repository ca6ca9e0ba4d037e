#include "cli/checkpoint/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "base/text.h"
#include "cli/checkpoint/convert_plan.h"
#include "cli/checkpoint/text.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint32_t kWorkersMax = 4096;

void add_output(CLI::App& app, bool& as_json) {
  app.add_option_function<std::string>(
         "-o,--output", [&as_json](const std::string& form) { as_json = form == "json"; }, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
}

void add_reading(CLI::App& app, ReadOptions& read) {
  app.add_option("--tag", read.tag, "which of several checkpoints in a folder: global_step1200, iter_0000003, ...");
  app.add_option(
      "--param-names", read.parameter_names_file,
      "FILE of parameter names in the model's order, one a line or a JSON list: for optimizer states keyed by number");
}

void add_bytes(CLI::App& app, const std::string& flag, std::uint64_t& bytes, const std::string& help) {
  app.add_option_function<std::string>(
         flag,
         [&bytes, flag](const std::string& words) {
           const std::optional<std::uint64_t> size = parse_bytes(words);
           if (!size || *size == 0)
             throw CLI::ValidationError(flag, text("\"", words, "\": expected a size such as 512MiB, 1GiB or 5GB"));
           bytes = *size;
         },
         help)
      ->type_name("SIZE");
}

void add_family(CLI::App& app, CheckpointArguments& all) {
  const char* group = "Names of a model family (for Megatron's checkpoints, to Hugging Face's)";
  FamilySettings& o = all.convert.family;
  app.add_option("--family", all.family,
                 "gpt, llama (also Qwen, Mistral), mixtral, gpt_neox; by default found by the names")
      ->group(group);
  app.add_flag("--keep-names", all.convert.keep_names, "no renaming, even where the family is recognised")
      ->group(group);
  app.add_option("--heads", o.attention_heads, "attention heads, where the checkpoint does not say")->group(group);
  app.add_option("--query-groups", o.query_groups, "heads of keys and values, likewise")->group(group);
  app.add_option("--head-size", o.head_size, "likewise")->group(group);
  app.add_option("--vocabulary", o.vocabulary, "rows of the vocabulary that are real: padding beyond them is cut")
      ->group(group);
  app.add_option("--config", all.convert.config_file,
                 "the model's config.json, which says all of that; by default the one beside the source. huggingface: "
                 "goes into the target, and names and shapes must fit it")
      ->group(group);
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "2/4", or what SLURM told the process.
void take_worker(const std::string& words, ConvertOptions& options) {
  const std::string given = words == "slurm" ? environment("SLURM_PROCID") + "/" + environment("SLURM_NTASKS") : words;
  std::uint32_t worker = 0, workers = 0;
  const char* const end = given.data() + given.size();
  const auto first = std::from_chars(given.data(), end, worker);
  const bool has_both = first.ec == std::errc() && first.ptr != end && *first.ptr == '/';
  const auto second = has_both ? std::from_chars(first.ptr + 1, end, workers) : first;
  if (!has_both || second.ec != std::errc() || second.ptr != end || worker >= workers || workers > kWorkersMax)
    throw CLI::ValidationError(
        "--worker", text("\"", words, "\": expected I/N with I from 0 to N - 1, or slurm where srun started us"));
  options.worker = worker;
  options.workers = workers;
}

// One word, the same of all processes that SLURM started together.
std::string slurm_job() {
  const std::string job = environment("SLURM_JOB_ID");
  return job.empty() ? job : text(job, ".", environment("SLURM_STEP_ID"));
}

void add_workers(CLI::App& app, ConvertOptions& o) {
  const char* group = "Several processes";
  app.add_option("--workers", o.workers, "so many processes here, that share --memory and the cores; default 1")
      ->check(CLI::Range(1u, kWorkersMax))
      ->group(group);
  app.add_option_function<std::string>(
         "--worker", [&o](const std::string& words) { take_worker(words, o); },
         "I/N: this process is one of N that are started alike, from 0 on, anywhere that sees source and target; "
         "slurm: "
         "as srun numbers them. They meet in TARGET.pawl-partial; worker 0 publishes. --memory is each one's own")
      ->type_name("I/N")
      ->excludes("--workers")
      ->group(group);
  app.add_option("--job-id", o.job, "WORD: whose workers these are, if jobs may write one target; default SLURM's")
      ->group(group);
  app.add_option_function<double>(
         "--wait", [&o](double seconds) { o.wait_ms = static_cast<std::uint64_t>(seconds * 1000); },
         "SECONDS that a worker is waited for that does not come, or writes nothing; default 600")
      ->check(CLI::Range(0.001, 1e7))
      ->group(group);
}

using To = ConvertOptions::To;

To target_format(const std::string& name) {
  for (const To to : kTargets)
    if (name == name_of(to)) return to;
  return To::safetensors;
}

void add_convert(CLI::App& app, CheckpointArguments& all, std::function<int()>& chosen) {
  CLI::App* convert = app.add_subcommand(
      "convert",
      "any checkpoint into safetensors, Hugging Face's, PyTorch DCP, DeepSpeed's universal, pawl's own, or "
      "one folder per parameter");
  ConvertOptions& o = all.convert;
  convert->footer(
      "Reads PyTorch (torch.save, DCP, FSDP, ZeroRedundancyOptimizer), DeepSpeed (ZeRO, pipeline, MoE, universal),\n"
      "Megatron-Core and safetensors; executes nothing that is in them. safetensors: one file, keys <name>/<role> with "
      "the\n"
      "roles weight, master, exp_avg, exp_avg_sq, step, buffer. dcp: a folder that torch's dcp.load reads into any "
      "layout,\n"
      "keys as torch's get_state_dict has them: model.<name>, optim.state.<name>.exp_avg; tied names are both there;\n"
      "hyperparameters (param_groups) are not: load \"optim\" with DefaultLoadPlanner(allow_partial_load=True).\n"
      "huggingface: what transformers loads, with the config.json that lies beside the source or that --config names;\n"
      "weights that don't fit it are refused.\n"
      "universal: a folder that DeepSpeed loads with load_universal, into any stage and layout.\n"
      "atomic: <parameter>/weight.safetensors, exp_avg.safetensors, ...: whole tensors in float32, of no layout.\n"
      "pawl: pawl's own store, as pawl.torch.save writes it: safetensors, a manifest with checksums, a marker. "
      "Without\n"
      "--roles it has hyperparameters too, where the source tells them; safetensors, huggingface, dcp, atomic don't.\n"
      "The target gets its name when it is whole and on the disk; until then it grows as TARGET.pawl-partial, which "
      "the next\n"
      "run takes over.");
  convert->add_option("source", o.source, "a file or a folder; its format is found by looking")->required();
  convert->add_option("target", o.target, "safetensors: a file; the others: a folder")->required();
  convert->add_option("--to", all.convert_to, "safetensors, huggingface, dcp, universal, atomic or pawl")
      ->required()
      ->check(CLI::IsMember({"safetensors", "huggingface", "dcp", "universal", "atomic", "pawl"}));
  convert->add_option("--roles", o.roles, "ROLE[,ROLE]: only these; default: all, of huggingface weight and buffer")
      ->delimiter(',');
  convert->add_option("--dtype", o.dtype,
                      "float32, float16 or bfloat16 for all tensors of these types; default: as stored");
  add_reading(*convert, o.read);
  add_family(*convert, all);
  add_workers(*convert, o);
  add_bytes(*convert, "--memory", o.memory_bytes, "at most so much memory for data; default 1GiB");
  convert->add_option("--trust-replica", o.trusted_replica,
                      "where copies of a tensor differ, take number N instead of refusing");
  add_bytes(*convert, "--max-file-size", o.file_bytes_max, "of each file of huggingface or dcp; default 5GB");
  convert->add_flag("--flat", o.flat_names, "dcp: weights and buffers under their own names, not below \"model.\"");
  convert->add_flag("--despite-problems", o.despite_problems,
                    "convert the chosen tensors although inspect shows problems; they must be whole themselves");
  convert->add_flag(
      "--overwrite", o.overwrite,
      "replace what is at the target; dcp, universal, atomic, pawl: the whole folder, if such a checkpoint is in it");
  convert->add_flag("--dry-run", o.dry_run, "say what would be written, and write nothing");
  add_output(*convert, o.json);
  convert->callback([convert, &all, &chosen] {
    all.convert.to = target_format(all.convert_to);
    if (!all.convert.worker && (convert->count("--job-id") != 0 || convert->count("--wait") != 0))
      throw CLI::ValidationError("--job-id, --wait", "only processes that meet (--worker I/N) have them");
    if (all.convert.worker && all.convert.job.empty()) all.convert.job = slurm_job();
    if (std::ranges::any_of(all.convert.job, [](unsigned char c) { return c <= ' ' || c == 0x7f; }))
      throw CLI::ValidationError("--job-id", "one word without blanks");
    const bool is_spread = all.convert.to == To::huggingface || all.convert.to == To::dcp;
    if (convert->count("--max-file-size") != 0 && !is_spread)
      throw CLI::ValidationError("--max-file-size",
                                 text("only huggingface and dcp fill files up to a size, not ", all.convert_to));
    if ((all.convert.to == To::universal || all.convert.to == To::atomic) && !all.convert.dtype.empty())
      throw CLI::ValidationError("--dtype",
                                 text(all.convert_to, " holds float32, whatever the source: leave --dtype out"));
    if (all.convert.flat_names && all.convert.to != To::dcp)
      throw CLI::ValidationError("--flat", text("only --to dcp has names below \"model.\", not ", all.convert_to));
    if (!all.family.empty() && !(all.convert.family.family = family_named(all.family)))
      throw CLI::ValidationError("--family", text("\"", all.family, "\": gpt, llama, mixtral and gpt_neox are known"));
    chosen = [&all] { return command_convert(all.convert); };
  });
}

}  // namespace

void add_checkpoints(CLI::App& app, CheckpointArguments& all, std::function<int()>& chosen) {
  CLI::App* inspect = app.add_subcommand("inspect", "what a checkpoint holds, whoever wrote it");
  inspect->add_option("path", all.inspect.path, "a file or a folder; its format is found by looking")->required();
  add_reading(*inspect, all.inspect.read);
  inspect->add_flag("-a,--all", all.inspect.all, "every tensor, not the first 40");
  add_output(*inspect, all.inspect.json);
  inspect->callback([&all, &chosen] { chosen = [&all] { return command_inspect(all.inspect); }; });

  add_convert(app, all, chosen);

  CLI::App* diff = app.add_subcommand("diff", "two checkpoints by value, across formats and layouts; 1 if they differ");
  DiffOptions& d = all.diff;
  diff->add_option("a", d.a, "a file or a folder")->required();
  diff->add_option("b", d.b, "another")->required();
  diff->add_option("--roles", d.roles, "ROLE[,ROLE]: only these")->delimiter(',');
  diff->add_option("--tolerance", d.tolerance, "largest absolute difference that counts as equal")
      ->check(CLI::NonNegativeNumber);
  add_reading(*diff, d.read);
  add_bytes(*diff, "--memory", d.memory_bytes, "at most so much memory for data; default 1GiB");
  diff->add_flag("-a,--all", d.all, "every tensor that differs, not the first 20");
  add_output(*diff, d.json);
  diff->callback([&all, &chosen] { chosen = [&all] { return command_diff(all.diff); }; });

  CLI::App* verify = app.add_subcommand("verify", "reads all of a checkpoint and proves what its format can prove");
  verify->add_option("path", all.verify.path, "a file or a folder")->required();
  add_reading(*verify, all.verify.read);
  add_bytes(*verify, "--memory", all.verify.memory_bytes, "at most so much memory for data; default 1GiB");
  add_output(*verify, all.verify.json);
  verify->callback([&all, &chosen] { chosen = [&all] { return command_verify(all.verify); }; });
}

}  // namespace pawl::checkpoint
