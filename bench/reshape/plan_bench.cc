// How fast plans are made, and in how much memory: a million shards and 4096 ranks on both sides. Prints one line of
// JSON. Times are of the CPU, so that neighbours disturb them less; peaks are the process's, so each case runs in a
// process of its own: plan_bench CASE. Cases:
//
//   shards   250 tensors, each cut over 4096 ranks (tensor parallel, then fully sharded), to another such cut
//   gpt      126 layers with an optimizer: tp=8,pp=16,dp=32,zero=1 to tp=4,pp=8,dp=128,zero=1
//   files    a view of 1000 tensors in 1000 files each, to 4096 ranks
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "base/text.h"
#include "checkpoint/reshape/file_source.h"
#include "checkpoint/reshape/plan.h"
#include "tensor/short_layout.h"

namespace pawl::checkpoint {
namespace {

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double peak_megabytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1000;
}

void give_up(const std::string& why) {
  std::fprintf(stderr, "plan_bench: %s\n", why.c_str());
  std::exit(1);
}

JobLayout cut_twice(std::uint64_t dp, std::uint64_t tp) {
  JobLayout layout{4096, {{"mesh", {{"dp", dp}, {"tp", tp}}}}, {}, {}};
  for (std::uint64_t t = 0; t < 250; ++t) {
    layout.tensors.push_back(
        {text("layers.", t, ".weight"), "weight", ElementType::float32, {16'384 - t, 512}, {}, {}});
    layout.tensors.back().placement.patterns = {AxisPattern::shard(1, 0), AxisPattern::shard(0, 0)};
  }
  return layout;
}

JobLayout gpt(const char* form) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](std::string name, Shape shape) {
    tensors.push_back({name, "weight", ElementType::bfloat16, shape});
    for (const char* role : {"master", "exp_avg", "exp_avg_sq"}) {
      tensors.push_back({name, role, ElementType::float32, shape});
    }
  };
  add("embedding.word_embeddings.weight", {128'000, 4096});
  for (int l = 0; l < 128; ++l) {
    const std::string layer = text("decoder.layers.", l);
    add(layer + ".input_layernorm.weight", {4096});
    add(layer + ".self_attention.linear_qkv.weight", {6144, 4096});
    add(layer + ".self_attention.linear_proj.weight", {4096, 4096});
    add(layer + ".pre_mlp_layernorm.weight", {4096});
    add(layer + ".mlp.linear_fc1.weight", {14'336, 4096});
    add(layer + ".mlp.linear_fc2.weight", {4096, 14'336});
  }
  add("decoder.final_layernorm.weight", {4096});
  Result<JobLayout> layout = parse_short_layout(form, ModelRules::gpt, tensors);
  if (!layout) give_up(layout.error().what);
  return *layout;
}

CheckpointView thousand_files() {
  CheckpointView view;
  for (int f = 0; f < 1000; ++f) view.files.push_back({.path = text("shard_", f)});
  for (std::uint64_t t = 0; t < 1000; ++t) {
    StoredTensor tensor{.name = text("layers.", t, ".weight"), .shape = {5000 + t, 512}};
    for (std::uint32_t f = 0; f < 1000; ++f) {
      const std::uint64_t begin = f * tensor.shape[0] / 1000;
      const Box box{2, {begin, 0}, {(f + 1) * tensor.shape[0] / 1000 - begin, 512}};
      tensor.pieces.push_back({box, f, t * 20'000, dense_stride(box)});
    }
    view.tensors.push_back(std::move(tensor));
  }
  return view;
}

JobLayout fully_sharded(const CheckpointView& view) {
  JobLayout layout{4096, {{"mesh", {{"dp", 4096}}}}, {}, {}};
  for (const StoredTensor& tensor : view.tensors) {
    layout.tensors.push_back(
        {tensor.name, tensor.role, tensor.type, tensor.shape, {}, {0, {AxisPattern::shard(0, 0)}}});
  }
  return layout;
}

struct Numbers {
  std::uint64_t shards = 0;
  std::uint64_t copies = 0;
  double one_rank_seconds = 0;
  double all_ranks_seconds = 0;
  double peak_before = 0;
};

// `make_source` anew for each plan, as a rank that starts would.
template <class MakeSource>
Numbers measure(const JobLayout& to, MakeSource make_source) {
  Numbers numbers;
  numbers.peak_before = peak_megabytes();
  std::uint64_t seen = 0;
  const auto planned = [&](const auto& run) {
    const double begin = cpu_seconds();
    const Enumeration target(to);
    const ReshapeSource source = make_source();
    const auto plan = ReshapePlan::create(source, target);
    if (!plan) give_up(plan.error().what);
    if (Status status = run(*plan); !status) give_up(status.error().what);
    return cpu_seconds() - begin;
  };
  const CopySink count = [&](const PlannedCopy& copy) { seen += copy.sources.size(); };
  std::vector<double> times;
  for (const std::uint32_t rank : {0u, 1234u, 4095u, 77u, 2048u}) {
    times.push_back(planned([&](const ReshapePlan& plan) { return plan.plan_rank(rank, count); }));
  }
  std::ranges::sort(times);
  numbers.one_rank_seconds = times[times.size() / 2];
  seen = 0;
  numbers.all_ranks_seconds = planned([&](const ReshapePlan& plan) { return plan.plan_all(count); });
  numbers.copies = seen;

  const ReshapeSource source = make_source();
  for (std::uint32_t t = 0; t < source.tensors.size(); ++t) {
    std::vector<TensorPiece> pieces;
    source.append_pieces(t, pieces);
    numbers.shards += pieces.size();
  }
  return numbers;
}

Numbers measure_layouts(const JobLayout& from, const JobLayout& to) {
  for (const JobLayout* layout : {&from, &to}) {
    if (Status checked = check_layout(*layout); !checked) give_up(checked.error().what);
  }
  const Enumeration ranks(from);
  return measure(to, [&] { return source_of(ranks); });
}

int run(const std::string& name) {
  Numbers numbers;
  if (name == "shards") {
    numbers = measure_layouts(cut_twice(512, 8), cut_twice(1024, 4));
  } else if (name == "gpt") {
    numbers = measure_layouts(gpt("tp=8,pp=16,dp=32,zero=1"), gpt("tp=4,pp=8,dp=128,zero=1"));
  } else if (name == "files") {
    const CheckpointView view = thousand_files();
    numbers = measure(fully_sharded(view), [&] { return source_of(view); });
  } else {
    give_up("one of: shards gpt files");
  }
  double load[1] = {0};
  (void)::getloadavg(load, 1);
  std::printf(
      "{\"case\": \"%s\", \"shards\": %llu, \"copies\": %llu, \"one_rank_cpu_s\": %.4f, \"all_ranks_cpu_s\": %.3f, "
      "\"cpu_s_per_million_copies\": %.3f, \"peak_mb\": %.1f, \"peak_mb_of_layouts\": %.1f, "
      "\"load\": %.1f}\n",
      name.c_str(), static_cast<unsigned long long>(numbers.shards), static_cast<unsigned long long>(numbers.copies),
      numbers.one_rank_seconds, numbers.all_ranks_seconds,
      1e6 * numbers.all_ranks_seconds / static_cast<double>(numbers.copies), peak_megabytes(), numbers.peak_before,
      load[0]);
  return 0;
}

}  // namespace
}  // namespace pawl::checkpoint

int main(int argc, char** argv) {
  return pawl::checkpoint::run(argc == 2 ? argv[1] : "");
}
