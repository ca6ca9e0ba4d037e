#include "cli/checkpoint/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "base/text.h"
#include "cli/checkpoint/convert_plan.h"
#include "cli/checkpoint/text.h"
#include "cli/output_flag.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint32_t kWorkersMax = 4096;

void add_reading(CLI::App& app, ReadOptions& read) {
  app.add_option("--tag", read.tag, "which checkpoint, if the folder has several: global_step1200, iter_0000003, ...");
  app.add_option(
      "--param-names", read.parameter_names_file,
      "FILE with the parameter names in the optimizer's order, one per line (an empty line between groups) or a JSON "
      "list; of several optimizers a JSON object of lists; needed if the optimizer state is keyed by number");
}

std::string non_negative(const std::string& words) {
  double number = 0;
  const auto read = std::from_chars(words.data(), words.data() + words.size(), number);
  const bool good = read.ec == std::errc() && read.ptr == words.data() + words.size() && number >= 0;
  return good ? "" : text("\"", words, "\": expected a number from 0 on");
}

std::string positive(const std::string& words) {
  std::uint64_t number = 0;
  const bool good = parse_number(std::string_view(words), number) && number > 0;
  return good ? "" : text("\"", words, "\": expected a whole number from 1 on");
}

void add_family(CLI::App& app, CheckpointArguments& all) {
  const char* group = "Model family (renames Megatron's tensors to Hugging Face's names)";
  FamilySettings& o = all.convert.family;
  app.add_option("--family", all.family,
                 "gpt, llama (also Qwen, Mistral), mixtral or gpt_neox; default: detected from the names")
      ->group(group);
  app.add_flag("--keep-names", all.convert.keep_names, "do not rename, even if the family is recognised")->group(group);
  app.add_option("--heads", o.attention_heads, "number of attention heads, if the checkpoint does not have it")
      ->group(group);
  app.add_option("--query-groups", o.query_groups, "number of key and value heads, if the checkpoint does not have it")
      ->group(group);
  app.add_option("--head-size", o.head_size, "size of a head, if the checkpoint does not have it")->group(group);
  app.add_option("--vocabulary", o.vocabulary, "number of real rows of the vocabulary; padding after them is removed")
      ->group(group);
  app.add_option("--config", all.convert.config_file,
                 "the model's config.json, instead of the four flags above; default: the one beside the source. "
                 "huggingface: it is copied to the target, and names and shapes must fit it")
      ->group(group);
}

std::string unknown_family(const std::string& words) {
  return text("\"", words, "\": expected gpt, llama, mixtral or gpt_neox");
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
  app.add_option("--workers", o.workers,
                 "number of processes on this machine; they share --memory and the cores; default 1")
      ->check(CLI::Range(1u, kWorkersMax))
      ->group(group);
  app.add_option_function<std::string>(
         "--worker", [&o](const std::string& words) { take_worker(words, o); },
         "this process is worker I (from 0) of N, all with the same flags, on machines that share a file system; "
         "slurm: the numbers that srun gives. Workers meet in TARGET.pawl-partial, worker 0 publishes. --memory is per "
         "worker")
      ->type_name("I/N")
      ->excludes("--workers")
      ->group(group);
  app.add_option("--job-id", o.job,
                 "WORD that tells these workers from another job's with the same target; default: Slurm's job")
      ->group(group);
  app.add_option_function<double>(
         "--wait", [&o](double seconds) { o.wait_ms = static_cast<std::uint64_t>(seconds * 1000); },
         "SECONDS to wait for a worker that does not start or makes no progress; default 600")
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
      "convert a checkpoint to safetensors, Hugging Face, PyTorch DCP, DeepSpeed universal, pawl's store, or one "
      "folder per parameter");
  ConvertOptions& o = all.convert;
  convert->footer(
      "Reads PyTorch (torch.save, DCP, FSDP, ZeroRedundancyOptimizer), DeepSpeed (ZeRO, pipeline, MoE, universal),\n"
      "Megatron-Core and safetensors. Never executes what is in them.\n"
      "  safetensors  one file, keys <name>/<role>; roles: weight, master, exp_avg, exp_avg_sq, step, buffer\n"
      "  huggingface  a folder for transformers, with the config.json beside the source or from --config;\n"
      "               weights that do not fit it are rejected\n"
      "  dcp          a folder for torch's dcp.load, into any layout; keys as in get_state_dict: model.<name>,\n"
      "               optim.state.<name>.exp_avg; tied names appear twice. It has no hyperparameters: load \"optim\"\n"
      "               with DefaultLoadPlanner(allow_partial_load=True)\n"
      "  universal    a folder for DeepSpeed's load_universal, into any stage and layout\n"
      "  atomic       <parameter>/weight.safetensors, exp_avg.safetensors, ...: whole tensors in float32\n"
      "  pawl         pawl's own store, as pawl.torch.save writes it; has hyperparameters, unless --roles is given\n"
      "The target appears when it is complete and on the disk. Until then it grows as TARGET.pawl-partial; if the\n"
      "conversion is killed, the next run takes that over. Guide: docs/user/convert.md.");
  convert->add_option("source", o.source, "a file or a folder; the format is detected automatically")->required();
  convert->add_option("target", o.target, "a file for safetensors, else a folder")->required();
  convert->add_option("--to", all.convert_to, "safetensors, huggingface, dcp, universal, atomic or pawl")
      ->required()
      ->check(CLI::IsMember({"safetensors", "huggingface", "dcp", "universal", "atomic", "pawl"}));
  convert
      ->add_option("--roles", o.roles, "ROLE[,ROLE]: convert only these; default: all (huggingface: weight and buffer)")
      ->delimiter(',');
  convert->add_option("--dtype", o.dtype,
                      "write all float32, float16 and bfloat16 tensors as this one of them; default: as stored");
  add_reading(*convert, o.read);
  add_family(*convert, all);
  add_workers(*convert, o);
  add_bytes(*convert, "--memory", o.memory_bytes, "most memory for data; default 1GiB");
  convert->add_option("--trust-replica", o.trusted_replica,
                      "if copies of a tensor differ, take copy number N; default: fail");
  add_bytes(*convert, "--max-file-size", o.file_bytes_max, "largest file of huggingface or dcp; default 5GB");
  convert->add_flag("--flat", o.flat_names, "dcp: use the names of weights and buffers without \"model.\" in front");
  convert->add_flag("--despite-problems", o.despite_problems,
                    "convert although `pawl inspect` reports problems; the chosen tensors themselves must be complete");
  convert->add_flag("--skip-unsupported", o.skip_unsupported,
                    "leave out tensors that are not read (quantized, sparse, without data) or that the target format "
                    "cannot hold; each is named, and the exit code is 4; default: fail");
  convert->add_flag(
      "--overwrite", o.overwrite,
      "replace the target; dcp, universal, atomic and pawl: the whole folder, if it holds such a checkpoint");
  convert->add_flag("--dry-run", o.dry_run, "show what would be written, and write nothing");
  add_output(*convert, o.json);
  convert->callback([convert, &all, &chosen] {
    all.convert.to = target_format(all.convert_to);
    if (!all.convert.worker && (convert->count("--job-id") != 0 || convert->count("--wait") != 0))
      throw CLI::ValidationError("--job-id, --wait", "only possible with --worker I/N");
    if (all.convert.worker && all.convert.job.empty()) all.convert.job = slurm_job();
    if (std::ranges::any_of(all.convert.job, [](unsigned char c) { return c <= ' ' || c == 0x7f; }))
      throw CLI::ValidationError("--job-id", "expected one word without blanks");
    const bool is_spread = all.convert.to == To::huggingface || all.convert.to == To::dcp;
    if (convert->count("--max-file-size") != 0 && !is_spread)
      throw CLI::ValidationError("--max-file-size",
                                 text("only possible for huggingface and dcp, not for ", all.convert_to));
    if ((all.convert.to == To::universal || all.convert.to == To::atomic) && !all.convert.dtype.empty())
      throw CLI::ValidationError("--dtype", text(all.convert_to, " always holds float32: leave out --dtype"));
    if (all.convert.flat_names && all.convert.to != To::dcp)
      throw CLI::ValidationError("--flat", text("only possible for dcp, not for ", all.convert_to));
    if (!all.family.empty() && !(all.convert.family.family = family_named(all.family)))
      throw CLI::ValidationError("--family", unknown_family(all.family));
    chosen = [&all] { return command_convert(all.convert); };
  });
}

}  // namespace

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

void add_checkpoints(CLI::App& app, CheckpointArguments& all, std::function<int()>& chosen) {
  CLI::App* inspect = app.add_subcommand("inspect", "show what a checkpoint holds: format, tensors, layout, problems");
  inspect->add_option("path", all.inspect.path, "a file or a folder; the format is detected automatically")->required();
  add_reading(*inspect, all.inspect.read);
  inspect->add_flag("-a,--all", all.inspect.all, "show every tensor, not only the first 40");
  add_output(*inspect, all.inspect.json);
  const char* group = "What a job would hold";
  CLI::Option* layout = inspect->add_option(
      "--layout", all.inspect.layout,
      "a parallel layout such as \"tp=2,pp=2,dp=4,zero=1\": show how many bytes each rank would hold, "
      "and tensors that cannot be laid out. Keys: tp pp vpp dp cp fsdp ep etp zero style bucket "
      "vocab stages first last");
  layout->group(group);
  inspect
      ->add_option("--family", all.inspect_family,
                   "gpt, llama (also Qwen, Mistral), mixtral or gpt_neox; default: detected from the names")
      ->needs(layout)
      ->group(group);
  inspect->callback([&all, &chosen] {
    if (!all.inspect_family.empty() && !(all.inspect.family = family_named(all.inspect_family)))
      throw CLI::ValidationError("--family", unknown_family(all.inspect_family));
    chosen = [&all] { return command_inspect(all.inspect); };
  });

  add_convert(app, all, chosen);

  CLI::App* diff = app.add_subcommand(
      "diff", "compare two checkpoints by value, across formats and layouts; exit code 1 if they differ");
  DiffOptions& d = all.diff;
  diff->add_option("a", d.a, "a file or a folder")->required();
  diff->add_option("b", d.b, "a file or a folder")->required();
  diff->add_option("--roles", d.roles, "ROLE[,ROLE]: compare only these")->delimiter(',');
  diff->add_option("--tolerance", d.tolerance, "largest absolute difference that counts as equal; default 0")
      ->check(non_negative);
  add_reading(*diff, d.read);
  add_bytes(*diff, "--memory", d.memory_bytes, "most memory for data; default 1GiB");
  diff->add_flag(
      "--skip-unsupported", d.skip_unsupported,
      "compare the rest although some tensors are not read (quantized, sparse, without data); default: fail");
  diff->add_flag("-a,--all", d.all, "show every tensor that differs, not only the first 20");
  add_output(*diff, d.json);
  diff->callback([&all, &chosen] { chosen = [&all] { return command_diff(all.diff); }; });

  CLI::App* ls =
      app.add_subcommand("ls", "list the checkpoints that a job wrote into a folder (`pawl run --checkpoint`)");
  ls->add_option("path", all.ls.path, "the folder, or one of its checkpoints")->required();
  add_output(*ls, all.ls.json);
  ls->callback([&all, &chosen] { chosen = [&all] { return command_ls(all.ls); }; });

  CLI::App* prune = app.add_subcommand(
      "prune",
      "remove old checkpoints from a folder that a job wrote (`pawl run --checkpoint`); the newest sound one stays");
  PruneOptions& p = all.prune;
  prune->footer(
      "A checkpoint that is only being written, or was left so, is not touched. A job that still runs goes back to "
      "older\n"
      "checkpoints if the newest is damaged: keep two for that. Guide: docs/user/checkpoints.md.");
  prune->add_option("path", p.path, "the folder of the checkpoints")->required();
  prune->add_option("--keep-last", p.keep_last, "keep the newest K checkpoints that are sound")
      ->required()
      ->check(positive);
  prune->add_option("--keep-every", p.keep_every, "also keep each checkpoint whose step is a multiple of E")
      ->check(positive);
  prune->add_flag("--left-behind", p.left_behind,
                  "remove those, too, that a job has left behind which went on from an earlier step");
  prune->add_flag("--damaged", p.damaged, "remove damaged ones, too, if at least one is sound");
  prune->add_flag("--dry-run", p.dry_run, "show what would be removed, and remove nothing");
  add_output(*prune, p.json);
  prune->callback([&all, &chosen] { chosen = [&all] { return command_prune(all.prune); }; });

  CLI::App* verify =
      app.add_subcommand("verify", "read a whole checkpoint, check its checksums, compare copies that should be equal");
  verify->add_option("path", all.verify.path, "a file or a folder")->required();
  add_reading(*verify, all.verify.read);
  add_bytes(*verify, "--memory", all.verify.memory_bytes, "most memory for data; default 1GiB");
  add_output(*verify, all.verify.json);
  verify->callback([&all, &chosen] { chosen = [&all] { return command_verify(all.verify); }; });
}

}  // namespace pawl::checkpoint
