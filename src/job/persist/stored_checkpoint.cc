#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/formats/native/store_view.h"
#include "checkpoint/formats/read_proof.h"
#include "checkpoint/library/requests.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/file_source.h"
#include "checkpoint/reshape/plan.h"
#include "env/files.h"
#include "job/persist/checkpoint_store.h"
#include "job/persist/other_world.h"

namespace pawl::job {
namespace {

using checkpoint::CheckpointView;
using checkpoint::ReadRequest;
using checkpoint::StoreManifest;

std::string label(std::string_view name, std::string_view role) {
  return text(name, " (", role, ")");
}

class FolderCheckpoint : public StoredCheckpoint {
 public:
  FolderCheckpoint(std::string path, StoreManifest manifest, CheckpointView view)
      : path_(std::move(path)), manifest_(std::move(manifest)), view_(std::move(view)) {
    for (std::uint32_t i = 0; i < view_.tensors.size(); ++i)
      tensor_of_.emplace(std::pair(view_.tensors[i].name, view_.tensors[i].role), i);
  }

  Result<StoredSeat> seat(Seat seat) override {
    PAWL_ASSIGN(const std::uint32_t count, seat_count());
    const Seat from = seat_in_world(seat, count);
    PAWL_ASSIGN(std::string layout, text_in(from, kSeatLayoutRole));
    PAWL_ASSIGN(const std::string info, text_in(from, kSeatInfoRole));
    PAWL_ASSIGN(const SeatInfo parsed, parse_seat_info(info));
    return StoredSeat{from, std::move(layout), parsed};
  }

  Status read(Seat seat, const SeatLayout& layout, std::span<std::byte> payload, PartProgress& progress) override {
    if (payload.size() != layout.payload_bytes)
      return Error{Code::invalid,
                   text("a payload of ", payload.size(), " bytes for a layout of ", layout.payload_bytes)};
    PAWL_TRY(read_own(seat, layout, payload.subspan(layout.stable_bytes)));
    PAWL_ASSIGN(const std::vector<ReadRequest> requests, requests_of(layout, payload));
    return read_tensors(requests, progress);
  }

 private:
  Result<std::uint32_t> seat_count() const {
    const std::uint32_t count = seat_count_in(manifest_);
    if (count == 0) return Error{Code::not_found, text(path_, " has no state of seats: it was not written by a job")};
    return count;
  }

  // What is each seat's own.
  Status read_own(Seat seat, const SeatLayout& layout, std::span<std::byte> out) {
    PAWL_ASSIGN(const std::uint32_t count, seat_count());
    if (layout.world == count) return read_bytes(seat, kSeatVolatileRole, out);
    PAWL_ASSIGN(const StoredSeat there, this->seat(seat));
    PAWL_ASSIGN(const SeatLayout stored, parse_layout(there.layout));
    if (stored.world != count)
      return Error{Code::corrupt, text(path_, " has ", count, " seats, and one of a world of ", stored.world)};
    std::vector<std::byte> own(stored.payload_bytes - stored.stable_bytes);
    PAWL_TRY(read_bytes(there.seat, kSeatVolatileRole, own));
    if (Status filled = fill_own_state(layout, seat, out, stored, own); !filled)
      return std::move(filled).error().within(path_);
    return {};
  }

  // What only a seat of a job reads.
  Result<const checkpoint::StoreManifestTensor*> own_of(Seat seat, std::string_view role) const {
    const std::string name = seat_tensor_name(seat);
    const auto found = std::ranges::find_if(
        manifest_.tensors, [&](const auto& tensor) { return tensor.name == name && tensor.role == role; });
    if (found == manifest_.tensors.end())
      return Error{Code::not_found, text(path_, " has no state of seat ", seat.value, ": its manifest lacks ", role)};
    if (found->shape.size() != 1 || found->pieces.size() > 1)
      return Error{Code::corrupt, text(path_, ": ", label(name, role), " is not one row of bytes")};
    return &*found;
  }

  Status read_bytes(Seat seat, std::string_view role, std::span<std::byte> out) const {
    PAWL_ASSIGN(const checkpoint::StoreManifestTensor* tensor, own_of(seat, role));
    if (tensor->shape[0] != out.size() || (tensor->pieces.empty() && !out.empty()))
      return Error{Code::invalid,
                   text(path_, ": ", label(tensor->name, role), " has ", tensor->shape[0], " bytes, not ", out.size())};
    if (out.empty()) return {};
    const checkpoint::StoreManifestPiece& piece = tensor->pieces.front();
    const std::string file = join_path(path_, manifest_.files[piece.file].name);
    PAWL_ASSIGN(const std::unique_ptr<File> open, open_file(file, {}));
    PAWL_ASSIGN(const std::size_t count, open->read_at(piece.offset_bytes, out));
    if (count != out.size() || crc32c(out) != piece.crc32c)
      return Error{Code::corrupt, text(file, ": ", label(tensor->name, role), ": its checksum differs")};
    return {};
  }

  Result<std::string> text_in(Seat seat, std::string_view role) const {
    PAWL_ASSIGN(const checkpoint::StoreManifestTensor* tensor, own_of(seat, role));
    std::string out(tensor->shape[0], '\0');
    PAWL_TRY(read_bytes(seat, role, std::as_writable_bytes(std::span(out))));
    return out;
  }

  // Of all stable entries, each where it lies in the payload.
  Result<std::vector<ReadRequest>> requests_of(const SeatLayout& layout, std::span<std::byte> payload) const {
    std::vector<ReadRequest> requests;
    FirstFew faults;
    for (const LayoutEntry& entry : layout.entries) {
      if (entry.lifetime != Lifetime::stable || entry.mesh == kNoMesh || volume(entry.box) == 0) continue;
      const auto found = tensor_of_.find({entry.name, entry.role});
      if (found == tensor_of_.end()) {
        faults.add(text(label(entry.name, entry.role), " is not there"));
        continue;
      }
      const checkpoint::StoredTensor& tensor = view_.tensors[found->second];
      if (tensor.shape != entry.shape || tensor.type != entry.dtype) {
        faults.add(text(label(entry.name, entry.role), " is ", name_of(tensor.type), " ", text_of(tensor.shape),
                        " there, ", name_of(entry.dtype), " ", text_of(entry.shape), " here"));
        continue;
      }
      ReadRequest request;
      request.tensor = found->second;
      request.type = entry.dtype;
      request.box = entry.box;
      request.stride = stride_in_payload(entry);
      request.memory = payload.data() + entry.payload_offset;
      request.memory_bytes = entry.bytes;
      requests.push_back(request);
    }
    if (faults.any()) return Error{Code::invalid, text(path_, ": ", faults.sentence())};
    return requests;
  }

  Status read_tensors(const std::vector<ReadRequest>& requests, PartProgress& progress) const {
    PAWL_ASSIGN(const std::vector<checkpoint::WantedPieces> wanted, checkpoint::wanted_of(view_, requests));
    const checkpoint::ReshapeSource source = checkpoint::source_of(view_, {});
    PAWL_ASSIGN(checkpoint::ReadProof proof, checkpoint::ReadProof::create(view_));
    checkpoint::ExecuteOptions options;
    options.observe_read = proof.observer();
    options.cancel = &progress.cancel;
    options.progress = [&progress](const checkpoint::ExecuteProgress& done) { progress.bytes = done.bytes_done; };
    PAWL_TRY(checkpoint::execute(
        [&](const checkpoint::CopySink& sink) { return checkpoint::plan_pieces(source, wanted, sink); },
        checkpoint::places_of(view_), checkpoint::target_of(requests, nullptr), options));
    checkpoint::ReadProof::Read read;
    for (const checkpoint::WantedPieces& one : wanted) read.tensors.push_back(one.source_tensor);
    PAWL_ASSIGN(const std::vector<std::string> damage, proof.damage(view_, read, &progress.cancel));
    if (!damage.empty()) return checkpoint::damaged_source(damage);
    return {};
  }

  std::string path_;
  StoreManifest manifest_;
  CheckpointView view_;
  std::map<std::pair<std::string, std::string>, std::uint32_t> tensor_of_;
};

}  // namespace

std::uint32_t seat_count_in(const StoreManifest& manifest) {
  return static_cast<std::uint32_t>(
      std::ranges::count(manifest.tensors, kSeatLayoutRole, &checkpoint::StoreManifestTensor::role));
}

Result<std::unique_ptr<StoredCheckpoint>> open_stored_checkpoint(const std::string& path) {
  if (!path_exists(parent_path(path)))
    return Error{Code::io, text(parent_path(path), " is not there on this node: is it mounted?")};
  PAWL_ASSIGN(StoreManifest manifest, checkpoint::read_store_manifest(path));
  PAWL_ASSIGN(CheckpointView view, checkpoint::view_store(path));
  return std::unique_ptr<StoredCheckpoint>(
      std::make_unique<FolderCheckpoint>(path, std::move(manifest), std::move(view)));
}

}  // namespace pawl::job
