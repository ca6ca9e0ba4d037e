// The C border of pawl/checkpoint.h: NULL checks, strings and arrays in and out, Result to pawl_status with its
// sentence. No logic of its own.
#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/c_struct.h"
#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/formats/proven_checkpoint.h"
#include "checkpoint/formats/stored_checksums.h"
#include "checkpoint/library/options.h"
#include "checkpoint/library/requests.h"
#include "checkpoint/library/seen_pieces.h"
#include "checkpoint/library/status.h"
#include "checkpoint/library/view_json.h"
#include "checkpoint/library/watch.h"
#include "checkpoint/reshape/compare_copies.h"
#include "checkpoint/reshape/file_source.h"
#include "checkpoint/reshape/plan.h"
#include "env/peer_memory.h"
#include "env/s3/s3_files.h"
#include "pawl/checkpoint.h"

struct pawl_checkpoint {
  pawl::checkpoint::CheckpointView view;
  std::string json;
  mutable std::mutex seen_mutex;  // of what is below; all else stays as it was opened
  mutable std::unique_ptr<pawl::checkpoint::StoredChecksums> checksums;
  mutable std::unique_ptr<pawl::checkpoint::SeenPieces> seen;
  mutable std::string seen_shares;
};

struct pawl_checkpoint_peers {
  pawl::PeerMemory memory;
  std::string ticket;
};

namespace {

using pawl::Code;
using pawl::Error;
using pawl::Result;
using pawl::Status;
using pawl::text;
using pawl::checkpoint::AccessOptions;
using pawl::checkpoint::CheckpointView;
using pawl::checkpoint::CopySink;

// Plans of requests, and what they read from. Refers to the checkpoint and the requests.
struct Reading {
  AccessOptions options;
  std::vector<pawl::checkpoint::ReadRequest> requests;
  pawl_checkpoint_peers* peers = nullptr;  // of those that have some
  std::vector<pawl::checkpoint::WantedPieces> wanted;
  pawl::checkpoint::ReshapeSource source;
  [[nodiscard]] Status plan(const CopySink& sink) const { return pawl::checkpoint::plan_pieces(source, wanted, sink); }
};

Result<CheckpointView> renamed(CheckpointView view, const pawl::checkpoint::ViewOptions& options) {
  if (options.names == pawl::checkpoint::Names::huggingface)
    return pawl::checkpoint::to_huggingface(view, options.family);
  if (options.names == pawl::checkpoint::Names::megatron)
    return pawl::checkpoint::from_huggingface(view, options.family);
  return view;
}

Result<std::unique_ptr<pawl_checkpoint>> open(const char* path, const pawl_checkpoint_open_options* given) {
  if (path == nullptr || *path == '\0') return Error{Code::invalid, "no path"};
  pawl::s3::read_s3_addresses();
  PAWL_ASSIGN(const pawl::checkpoint::ViewOptions options, pawl::checkpoint::view_options_of(given));
  PAWL_ASSIGN(CheckpointView view, pawl::checkpoint::open_proven(path, options.read));
  auto checkpoint = std::make_unique<pawl_checkpoint>();
  PAWL_ASSIGN(checkpoint->view, renamed(std::move(view), options));
  checkpoint->json = pawl::checkpoint::json_of(checkpoint->view);
  return checkpoint;
}

// What of a request can be wrong before its numbers mean anything.
Result<pawl::checkpoint::ReadRequest> request_of(const CheckpointView& view, const pawl_checkpoint_request& given) {
  if (given.tensor >= view.tensors.size())
    return Error{Code::invalid, text("tensor ", given.tensor, ", but there are ", view.tensors.size())};
  const pawl::checkpoint::StoredTensor& tensor = view.tensors[given.tensor];
  const bool is_whole = given.begin == nullptr && given.size == nullptr && given.stride_bytes == nullptr;
  const std::string label = pawl::label_of(tensor.name, tensor.role);
  if (given.dimension_count != tensor.shape.size() && !(is_whole && given.dimension_count == 0))
    return Error{Code::invalid, text(label, ": ", pawl::text_of(tensor.shape), " held, a box of ",
                                     given.dimension_count, " dimensions wanted")};
  pawl::checkpoint::ReadRequest request{given.tensor, tensor.type, pawl::whole_box(tensor.shape),
                                        {},           nullptr,     given.memory_bytes};
  request.memory = static_cast<std::byte*>(given.memory);
  if (given.dtype != nullptr) {
    const std::optional<pawl::ElementType> type = pawl::element_type_named(given.dtype);
    if (!type) return Error{Code::invalid, text(label, ": no type is called \"", given.dtype, "\"")};
    request.type = *type;
  }
  for (std::uint32_t d = 0; d < tensor.shape.size(); ++d) {
    if (given.begin != nullptr) request.box.begin[d] = given.begin[d];
    const std::uint64_t left = tensor.shape[d] - std::min(tensor.shape[d], request.box.begin[d]);
    request.box.size[d] = given.size != nullptr ? given.size[d] : left;
  }
  request.stride = pawl::dense_stride(request.box);
  const std::uint64_t bits = pawl::size_bits(request.type);  // of packed types no part of a byte: they are dense
  for (std::uint32_t d = 0; given.stride_bytes != nullptr && bits % 8 == 0 && d < tensor.shape.size(); ++d) {
    if (given.stride_bytes[d] % (bits / 8) != 0)
      return Error{Code::invalid, text(label, ": its stride of dimension ", d, ", ", given.stride_bytes[d],
                                       " bytes, is not a multiple of an element's ", bits / 8)};
    request.stride[d] = given.stride_bytes[d] / (bits / 8);
  }
  if (given.peers != nullptr) request.peer = given.peer;
  return request;
}

Result<Reading> prepare(const pawl_checkpoint& checkpoint, const pawl_checkpoint_request* requests, std::size_t count,
                        const pawl_checkpoint_access_options* given) {
  if (requests == nullptr && count != 0) return Error{Code::invalid, "the requests are NULL"};
  if (count > ~std::uint32_t{0}) return Error{Code::invalid, "more requests than can be numbered"};
  PAWL_TRY(pawl::check_input_structs(requests, count, pawl::checkpoint::kRequestStruct));
  Reading reading;
  PAWL_ASSIGN(reading.options, pawl::checkpoint::access_options_of(given));
  pawl::FirstFew faults;
  for (std::size_t i = 0; i < count; ++i) {
    const auto each = pawl::read_struct_at<pawl_checkpoint_request>(requests, i);
    if (pawl_checkpoint_peers* const peers = each.peers; peers != nullptr) {
      if (reading.peers != nullptr && peers != reading.peers)
        return Error{Code::invalid, "requests with different peers"};
      reading.peers = peers;
    }
    Result<pawl::checkpoint::ReadRequest> request = request_of(checkpoint.view, each);
    if (request)
      reading.requests.push_back(*request);
    else
      faults.add(request.error().what);
  }
  if (faults.any()) return Error{Code::invalid, faults.sentence()};
  PAWL_ASSIGN(reading.wanted, pawl::checkpoint::wanted_of(checkpoint.view, reading.requests));
  reading.source = pawl::checkpoint::source_of(checkpoint.view, reading.options.source);
  PAWL_TRY(reading.plan([](const pawl::checkpoint::PlannedCopy&) {}));
  return reading;
}

// Both are made when they are first asked for. With the mutex held.
Result<const pawl::checkpoint::StoredChecksums*> checksums_in(const pawl_checkpoint& checkpoint) {
  if (!checkpoint.checksums) {
    PAWL_ASSIGN(pawl::checkpoint::StoredChecksums listed, pawl::checkpoint::checksums_of(checkpoint.view));
    checkpoint.checksums = std::make_unique<pawl::checkpoint::StoredChecksums>(std::move(listed));
  }
  return checkpoint.checksums.get();
}

Result<pawl::checkpoint::SeenPieces*> seen_in(const pawl_checkpoint& checkpoint) {
  if (!checkpoint.seen) {
    PAWL_ASSIGN(const pawl::checkpoint::StoredChecksums* checksums, checksums_in(checkpoint));
    PAWL_ASSIGN(checkpoint.seen, pawl::checkpoint::SeenPieces::create(*checksums, checkpoint.view.files));
  }
  return checkpoint.seen.get();
}

Status read(const pawl_checkpoint& checkpoint, const pawl_checkpoint_request* requests, std::size_t count,
            const pawl_checkpoint_access_options* given, pawl_checkpoint_report* report) {
  if (report != nullptr) PAWL_TRY(pawl::check_output_struct(report, pawl::checkpoint::kReportStruct));
  PAWL_ASSIGN(Reading reading, prepare(checkpoint, requests, count, given));
  std::uint64_t bytes = 0;
  for (const pawl::checkpoint::ReadRequest& request : reading.requests)
    bytes += pawl::volume(request.box) * pawl::size_bits(request.type) / 8;
  pawl::checkpoint::watch_execution(reading.options.watch, reading.options.execute, bytes);
  if (reading.options.prove) {
    const std::lock_guard lock(checkpoint.seen_mutex);
    PAWL_ASSIGN(pawl::checkpoint::SeenPieces * seen, seen_in(checkpoint));
    reading.options.execute.observe_read = seen->observer();
  }
  PAWL_ASSIGN(const pawl::checkpoint::ExecuteReport done,
              pawl::checkpoint::execute(
                  [&](const CopySink& sink) { return reading.plan(sink); }, places_of(checkpoint.view),
                  target_of(reading.requests, reading.peers == nullptr ? nullptr : &reading.peers->memory),
                  reading.options.execute));
  if (report == nullptr) return {};
  pawl_checkpoint_report told{};
  told.bytes_read = done.bytes_read;
  told.bytes_moved = done.bytes_moved;
  for (const auto& [tensor, overflows] : done.overflowed) told.overflowed += overflows;
  pawl::fill_struct(report, told);
  return {};
}

// Indices of tensors that a caller gave.
Result<std::vector<std::uint32_t>> chosen_of(const CheckpointView& view, const std::uint32_t* tensors,
                                             std::size_t count) {
  if (tensors == nullptr && count != 0) return Error{Code::invalid, "the tensors are NULL"};
  for (std::size_t i = 0; i < count; ++i)
    if (tensors[i] >= view.tensors.size())
      return Error{Code::invalid, text("tensor ", tensors[i], ", but there are ", view.tensors.size())};
  return std::vector<std::uint32_t>(tensors, tensors + count);
}

Status compare(const pawl_checkpoint& checkpoint, const std::uint32_t* tensors, std::size_t count,
               const pawl_checkpoint_access_options* given) {
  PAWL_ASSIGN(AccessOptions options, pawl::checkpoint::access_options_of(given));
  PAWL_ASSIGN(std::vector<std::uint32_t> chosen, chosen_of(checkpoint.view, tensors, count));
  pawl::checkpoint::watch_execution(options.watch, options.execute, 0);
  std::erase_if(chosen, [&](std::uint32_t tensor) {
    const auto& pieces = checkpoint.view.tensors[tensor].pieces;
    const auto is_trusted = [&](const pawl::checkpoint::StoredPiece& piece) {
      return piece.copy == options.source.trusted_copy;
    };
    if (options.source.trusted_copy && std::ranges::any_of(pieces, is_trusted)) return true;
    return std::ranges::none_of(pieces, [](const pawl::checkpoint::StoredPiece& piece) { return piece.copy != 0; });
  });
  if (chosen.empty()) return {};
  PAWL_ASSIGN(const std::vector<pawl::checkpoint::CopyDifference> differences,
              pawl::checkpoint::compare_copies(checkpoint.view, chosen, options.execute));
  pawl::FirstFew faults;
  for (const pawl::checkpoint::CopyDifference& difference : differences)
    faults.add(pawl::checkpoint::sentence_of(difference, checkpoint.view));
  if (!faults.any()) return {};
  return Error{Code::corrupt, text("copies that should be equal differ: ", faults.sentence())};
}

// Of the checksums that these tensors' bytes have, those that this share is to prove, and nothing has proven yet.
Result<std::vector<std::size_t>> to_prove(const pawl_checkpoint& checkpoint, const std::vector<std::uint32_t>& tensors,
                                          const AccessOptions& options, std::uint32_t share, std::uint32_t shares) {
  const std::lock_guard lock(checkpoint.seen_mutex);
  PAWL_ASSIGN(const pawl::checkpoint::StoredChecksums* checksums, checksums_in(checkpoint));
  std::vector<bool> proven(checksums->all.size(), false);
  if (!options.seen.empty()) {
    PAWL_ASSIGN(const pawl::checkpoint::SeenPieces* seen, seen_in(checkpoint));
    PAWL_ASSIGN(proven, seen->proven_by(options.seen));
  }
  std::vector<std::size_t> numbers =
      pawl::checkpoint::checksums_meeting(*checksums, checkpoint.view, tensors, options.source.trusted_copy);
  std::erase_if(numbers, [&](std::size_t number) { return proven[number] || number % shares != share; });
  return numbers;
}

Status prove(const pawl_checkpoint& checkpoint, const std::uint32_t* tensors, std::size_t count, std::uint32_t share,
             std::uint32_t shares, const pawl_checkpoint_access_options* given) {
  PAWL_ASSIGN(const AccessOptions options, pawl::checkpoint::access_options_of(given));
  PAWL_ASSIGN(const std::vector<std::uint32_t> chosen, chosen_of(checkpoint.view, tensors, count));
  if (shares == 0 || share >= shares) return Error{Code::invalid, text("share ", share, " of ", shares)};
  PAWL_ASSIGN(const std::vector<std::size_t> numbers, to_prove(checkpoint, chosen, options, share, shares));
  const pawl::checkpoint::StoredChecksums& checksums = *checkpoint.checksums;
  std::uint64_t bytes_all = 0;
  for (const std::size_t number : numbers) bytes_all += checksums.all[number].end - checksums.all[number].begin;
  pawl::checkpoint::ExecuteOptions watched;
  pawl::checkpoint::watch_execution(options.watch, watched, bytes_all);
  pawl::checkpoint::ChecksumProofOptions proof{.threads = options.execute.threads, .cancel = watched.cancel};
  if (watched.progress)
    proof.progress = [&](std::uint64_t bytes) { watched.progress({bytes, watched.bytes_expected}); };
  PAWL_ASSIGN(pawl::checkpoint::ChecksumReport found, pawl::checkpoint::prove_checksums(checksums, numbers, proof));
  found.wrong.insert(found.wrong.begin(), checksums.wrong.begin(), checksums.wrong.end());
  if (found.wrong.empty()) return {};
  return Error{Code::corrupt, pawl::first_few(found.wrong)};
}

constexpr const char* kNoHandle = "the checkpoint is NULL";
constexpr const char* kNoPeers = "the peers are NULL";

}  // namespace

pawl_status pawl_checkpoint_open(const char* path, const pawl_checkpoint_open_options* options,
                                 pawl_checkpoint** checkpoint) {
  if (checkpoint == nullptr) return pawl::checkpoint::failed({Code::invalid, "there is nowhere to put the handle"});
  *checkpoint = nullptr;
  Result<std::unique_ptr<pawl_checkpoint>> opened = open(path, options);
  if (!opened) return pawl::checkpoint::failed(std::move(opened).error());
  *checkpoint = opened->release();
  return PAWL_OK;
}

const char* pawl_checkpoint_json(const pawl_checkpoint* checkpoint) {
  return checkpoint == nullptr ? "null" : checkpoint->json.c_str();
}

pawl_status pawl_checkpoint_check(const pawl_checkpoint* checkpoint, const pawl_checkpoint_request* requests,
                                  size_t count, const pawl_checkpoint_access_options* options) {
  if (checkpoint == nullptr) return pawl::checkpoint::failed({Code::invalid, kNoHandle});
  const Result<Reading> reading = prepare(*checkpoint, requests, count, options);
  return reading ? PAWL_OK : pawl::checkpoint::failed(reading.error());
}

pawl_status pawl_checkpoint_read(const pawl_checkpoint* checkpoint, const pawl_checkpoint_request* requests,
                                 size_t count, const pawl_checkpoint_access_options* options,
                                 pawl_checkpoint_report* report) {
  if (checkpoint == nullptr) return pawl::checkpoint::failed({Code::invalid, kNoHandle});
  return pawl::checkpoint::answer(read(*checkpoint, requests, count, options, report));
}

const char* pawl_checkpoint_seen(const pawl_checkpoint* checkpoint) {
  if (checkpoint == nullptr) return "";
  const std::lock_guard lock(checkpoint->seen_mutex);
  checkpoint->seen_shares = checkpoint->seen ? checkpoint->seen->shares() : "";
  return checkpoint->seen_shares.c_str();
}

pawl_status pawl_checkpoint_compare(const pawl_checkpoint* checkpoint, const uint32_t* tensors, size_t count,
                                    const pawl_checkpoint_access_options* options) {
  if (checkpoint == nullptr) return pawl::checkpoint::failed({Code::invalid, kNoHandle});
  return pawl::checkpoint::answer(compare(*checkpoint, tensors, count, options));
}

pawl_status pawl_checkpoint_prove(const pawl_checkpoint* checkpoint, const uint32_t* tensors, size_t count,
                                  uint32_t share, uint32_t shares, const pawl_checkpoint_access_options* options) {
  if (checkpoint == nullptr) return pawl::checkpoint::failed({Code::invalid, kNoHandle});
  return pawl::checkpoint::answer(prove(*checkpoint, tensors, count, share, shares, options));
}

pawl_status pawl_checkpoint_watch_create(pawl_checkpoint_watch** watch) {
  if (watch == nullptr) return pawl::checkpoint::failed({Code::invalid, "there is nowhere to put the watch"});
  *watch = new pawl_checkpoint_watch;
  return PAWL_OK;
}

void pawl_checkpoint_watch_look(const pawl_checkpoint_watch* watch, uint64_t* bytes_done, uint64_t* bytes_all) {
  if (bytes_done != nullptr) *bytes_done = watch == nullptr ? 0 : watch->bytes_done.load();
  if (bytes_all != nullptr) *bytes_all = watch == nullptr ? 0 : watch->bytes_all.load();
}

void pawl_checkpoint_watch_cancel(pawl_checkpoint_watch* watch) {
  if (watch != nullptr) watch->is_cancelled = true;
}

void pawl_checkpoint_watch_free(pawl_checkpoint_watch* watch) {
  delete watch;
}

pawl_status pawl_checkpoint_peers_open(pawl_checkpoint_peers** peers) {
  if (peers == nullptr) return pawl::checkpoint::failed({Code::invalid, "there is nowhere to put the handle"});
  *peers = new pawl_checkpoint_peers;
  (*peers)->ticket = (*peers)->memory.ticket();
  return PAWL_OK;
}

const char* pawl_checkpoint_peers_ticket(const pawl_checkpoint_peers* peers) {
  return peers == nullptr ? "" : peers->ticket.c_str();
}

pawl_status pawl_checkpoint_peers_join(pawl_checkpoint_peers* peers, const char* const* tickets, size_t count,
                                       size_t self) {
  if (peers == nullptr) return pawl::checkpoint::failed({Code::invalid, kNoPeers});
  std::vector<std::string> all;
  for (std::size_t i = 0; i < count; ++i) {
    if (tickets == nullptr || tickets[i] == nullptr)
      return pawl::checkpoint::failed({Code::invalid, "a ticket is NULL"});
    all.emplace_back(tickets[i]);
  }
  return pawl::checkpoint::answer(peers->memory.join(all, self));
}

pawl_status pawl_checkpoint_peers_read(const pawl_checkpoint_peers* peers, size_t peer, uint64_t address, void* to,
                                       size_t size_bytes) {
  if (peers == nullptr) return pawl::checkpoint::failed({Code::invalid, kNoPeers});
  if (to == nullptr && size_bytes != 0)
    return pawl::checkpoint::failed({Code::invalid, "there is nowhere to put the bytes"});
  return pawl::checkpoint::answer(peers->memory.read(peer, address, {static_cast<std::byte*>(to), size_bytes}));
}

pawl_status pawl_checkpoint_peers_leave(pawl_checkpoint_peers* peers, uint32_t patience_ms) {
  if (peers == nullptr) return pawl::checkpoint::failed({Code::invalid, kNoPeers});
  return pawl::checkpoint::answer(peers->memory.close(std::chrono::milliseconds(patience_ms)));
}

void pawl_checkpoint_peers_free(pawl_checkpoint_peers* peers) {
  delete peers;
}

void pawl_checkpoint_close(pawl_checkpoint* checkpoint) {
  delete checkpoint;
}

const char* pawl_checkpoint_error(void) {
  return pawl::checkpoint::last_error();
}
