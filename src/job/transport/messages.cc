#include "job/transport/messages.h"

#include <concepts>
#include <type_traits>

#include "base/text.h"

namespace pawl::job {

std::string pack(std::span<const std::string> strings) {
  Writer out;
  out.u32(static_cast<std::uint32_t>(strings.size()));
  for (const std::string& each : strings) out.str(each);
  return out.take();
}

bool unpack(std::string_view packed, std::vector<std::string>& strings) {
  Reader in(packed);
  const std::uint32_t count = in.u32();
  strings.clear();
  if (count > kKeysMax) return false;
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) strings.push_back(in.str());
  return in.done();
}

namespace {

template <class Field>
struct IsId : std::false_type {};
template <class Tag, class Integer>
struct IsId<Id<Tag, Integer>> : std::true_type {};

// Writing and reading go through the same list of fields (fields(), below), so they cannot disagree.
class FieldWriter {
 public:
  template <class... Field>
  void operator()(Field&... field) {
    (one(field), ...);
  }
  void rest(const std::string& text) { rest_ = text; }
  void skip_rest() {}
  [[nodiscard]] std::string take() { return out_.take() + rest_; }

 private:
  template <class Field>
  void one(Field& field) {
    if constexpr (std::is_enum_v<Field>) {
      static_assert(sizeof(Field) == 1);
      out_.u8(static_cast<std::uint8_t>(field));
    } else if constexpr (IsId<Field>::value) {
      one(field.value);
    } else if constexpr (std::same_as<Field, Progress>) {
      out_.u64(field.pack());
    } else if constexpr (std::same_as<Field, std::string>) {
      out_.str(field);
    } else if constexpr (std::same_as<Field, std::vector<std::uint32_t>>) {
      out_.u32(static_cast<std::uint32_t>(field.size()));
      for (const std::uint32_t each : field) out_.u32(each);
    } else if constexpr (std::same_as<Field, bool>) {
      out_.u8(field ? 1 : 0);
    } else if constexpr (std::integral<Field> && sizeof(Field) == 4) {
      out_.u32(static_cast<std::uint32_t>(field));
    } else if constexpr (std::integral<Field> && sizeof(Field) == 8) {
      out_.u64(static_cast<std::uint64_t>(field));
    } else {
      fields(*this, field);
    }
  }
  Writer out_;
  std::string rest_;
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view in) : in_(in) {}
  template <class... Field>
  void operator()(Field&... field) {
    (one(field), ...);
  }
  void rest(std::string& text) { text = in_.rest(); }
  void skip_rest() {
    if (in_.ok()) (void)in_.rest();
  }
  [[nodiscard]] bool done() const { return is_exact_ && in_.done(); }

 private:
  template <class Field>
  void one(Field& field) {
    if constexpr (std::is_enum_v<Field>) {
      static_assert(sizeof(Field) == 1);
      field = static_cast<Field>(in_.u8());
    } else if constexpr (IsId<Field>::value) {
      one(field.value);
    } else if constexpr (std::same_as<Field, Progress>) {
      field = Progress::unpack(in_.u64());
    } else if constexpr (std::same_as<Field, std::string>) {
      field = in_.str();
    } else if constexpr (std::same_as<Field, std::vector<std::uint32_t>>) {
      field.clear();
      for (std::uint32_t left = in_.u32(); left > 0 && in_.ok(); --left) field.push_back(in_.u32());
    } else if constexpr (std::same_as<Field, bool>) {
      const std::uint8_t told = in_.u8();
      field = told == 1;
      is_exact_ = is_exact_ && told <= 1;
    } else if constexpr (std::integral<Field> && sizeof(Field) == 4) {
      field = static_cast<Field>(in_.u32());
    } else if constexpr (std::integral<Field> && sizeof(Field) == 8) {
      field = static_cast<Field>(in_.u64());
    } else {
      fields(*this, field);
    }
  }
  Reader in_;
  bool is_exact_ = true;  // no other bytes mean the same
};

bool is_valid(const RendezvousRequest& request) {
  if (request.op == RendezvousOp::get_all) {
    std::vector<std::string> keys;
    return unpack(request.value, keys) && !keys.empty();
  }
  return request.op >= RendezvousOp::set && request.op <= RendezvousOp::erase;
}
bool is_valid(const RendezvousMessage& message) {
  return is_valid(message.request);
}
bool is_valid(const PeerRendezvousMessage& message) {
  return is_valid(message.request);
}
template <class Message>
bool is_valid(const Message&) {
  return true;
}

template <class F>
void fields(F& f, RendezvousRequest& m) {
  f(m.op, m.client, m.number, m.key, m.value, m.expected, m.amount, m.wait_ms);
}
template <class F>
void fields(F& f, RendezvousAnswer& m) {
  f(m.found, m.value, m.refused);
}

template <class F>
void fields(F& f, AttachMessage& m) {
  f(m.version, m.local_index, m.nonce, m.generation, m.seat);
}
template <class F>
void fields(F& f, JoinMessage& m) {
  f(m.left);
}
template <class F>
void fields(F& f, LayoutMessage& m) {
  f(m.payload_bytes, m.stable_bytes, m.bucket_bytes, m.layout_digest, m.layout);
}
template <class F>
void fields(F& f, RestoreMessage& m) {
  f(m.generation, m.as_it_fills);
}
template <class F>
void fields(F& f, RestoreBadMessage& m) {
  f(m.slot, m.why);
}
template <class F>
void fields(F& f, DoneMessage& m) {
  f(m.generation);
}
template <class F>
void fields(F& f, FaultMessage& m) {
  f(m.generation, m.what, m.lost);
}
template <class F>
void fields(F& f, RendezvousMessage& m) {
  f(m.generation, m.request);
}
template <class F>
void fields(F& f, FinishMessage& m) {
  f(m.commit_first, m.last_step);
}
template <class F>
void fields(F&, DetachMessage&) {}
template <class F>
void fields(F& f, StopAfterMessage& m) {
  f(m.generation, m.step);
}

template <class F>
void fields(F& f, AttachedMessage& m) {
  f(m.version, m.seat);
}
template <class F>
void fields(F& f, SeatedMessage& m) {
  f(m.generation, m.seat, m.world, m.local_rank, m.resume, m.rendezvous_prefix);
}
template <class F>
void fields(F& f, ArenaMessage& m) {
  f(m.size_bytes);
}
template <class F>
void fields(F& f, SlotMessage& m) {
  f(m.index, m.generation, m.step);
}
template <class F>
void fields(F& f, RunningMessage& m) {
  f(m.generation);
}
template <class F>
void fields(F&, NotedMessage&) {}
template <class F>
void fields(F& f, ValueMessage& m) {
  f(m.answer);
}
template <class F>
void fields(F&, FinishedMessage&) {}
template <class F>
void fields(F& f, RefusedMessage& m) {
  f(m.status, m.why);
}
template <class F>
void fields(F& f, StoppingMessage& m) {
  f(m.step);
}

template <class F>
void fields(F& f, Hello& m) {
  f(m.version);
  if (m.version != kPeerWireVersion) return f.skip_rest();  // the rest may look different
  f(m.job, m.token, m.node, m.incarnation, m.expected, m.generation, m.purpose, m.seat, m.stream);
}
template <class F>
void fields(F& f, WelcomeMessage& m) {
  f(m.node, m.incarnation);
}
template <class F>
void fields(F& f, PeerRefusedMessage& m) {
  f(m.refusal, m.why);
}
template <class F>
void fields(F& f, BeatMessage& m) {
  f(m.generation);
}
template <class F>
void fields(F&, BeatBackMessage&) {}
template <class F>
void fields(F& f, ReportMessage& m) {
  f(m.generation, m.report.known, m.report.held, m.report.voided);
}
template <class F>
void fields(F& f, PaceMessage& m) {
  f(m.generation, m.paces);
}
template <class F>
void fields(F& f, EqualSumsMessage& m) {
  f(m.generation, m.sums);
}
template <class F>
void fields(F& f, NarrowMessage& m) {
  f(m.generation, m.begin, m.end, m.digest, m.seat);
}
template <class F>
void fields(F& f, PersistMessage& m) {
  f(m.generation, m.attempt, m.pinned, m.written, m.proven, m.bytes, m.failed, m.unpinned, m.wanted);
}
template <class F>
void fields(F& f, ProgressMessage& m) {
  f(m.generation, m.progress);
}
template <class F>
void fields(F& f, PeerRendezvousMessage& m) {
  f(m.generation, m.request);
}
template <class F>
void fields(F& f, PeerValueMessage& m) {
  f(m.answer);
}
template <class F>
void fields(F& f, ArenaShape& m) {
  f(m.slot_count, m.payload_bytes, m.stable_bytes, m.bucket_bytes, m.plan_digest, m.layout_digest, m.layout_bytes);
}
template <class F>
void fields(F& f, OpenMessage& m) {
  f(m.generation, m.step, m.samples, m.shape);
}
template <class F>
void fields(F&, OpenedMessage&) {}
template <class F>
void fields(F&, BusyMessage&) {}
template <class F>
void fields(F& f, LaterMessage& m) {
  f(m.why);
}
template <class F>
void fields(F& f, LayoutWantedMessage& m) {
  f(m.layout_digest);
}
template <class F>
void fields(F& f, LayoutTextMessage& m) {
  f(m.layout);
}
template <class F>
void fields(F& f, HeldMessage& m) {
  f(m.step);
}
template <class F>
void fields(F& f, BucketMessage& m) {
  f(m.extent, m.index, m.crc32c, m.generation, m.step);
}
template <class F>
void fields(F& f, SameBucketsMessage& m) {
  f(m.generation, m.step, m.digest, m.first, m.crc32c);
}
template <class F>
void fields(F& f, BucketsWantedMessage& m) {
  f(m.differ, m.buckets);
}
template <class F>
void fields(F& f, BucketBadMessage& m) {
  f(m.index);
}
template <class F>
void fields(F& f, SealMessage& m) {
  f(m.step, m.lane_buckets);
}
template <class F>
void fields(F& f, AbandonMessage& m) {
  f(m.step, m.lane_buckets);
}
template <class F>
void fields(F& f, TornMessage& m) {
  f(m.generation, m.step);
}
template <class F>
void fields(F& f, FetchMessage& m) {
  f(m.seat, m.from, m.slot_generation, m.step, m.prove, m.first_bucket, m.bucket_count, m.sums);
}
template <class F>
void fields(F& f, SlotBeginMessage& m) {
  f(m.generation, m.step, m.samples, m.shape, m.layout);
}
template <class F>
void fields(F& f, BucketsBadMessage& m) {
  f(m.first, m.count, m.why);
}
template <class F>
void fields(F& f, CollectMessage& m) {
  f(m.report);
}
template <class F>
void fields(F&, CollectedMessage&) {}
template <class F>
void fields(F& f, QuestionMessage& m) {
  f.rest(m.json);
}
template <class F>
void fields(F& f, AnswerMessage& m) {
  f.rest(m.json);
}

}  // namespace

template <class Message>
std::string encode(const Message& message) {
  FieldWriter out;
  fields(out, const_cast<Message&>(message));  // which only reads it
  return out.take();
}

template <class Message>
bool decode(std::string_view payload, Message& out) {
  FieldReader in(payload);
  fields(in, out);
  return in.done() && is_valid(out);
}

Generation generation_of(const Frame& frame) {
  return Generation(Reader(frame.payload).u64());
}

Error unexpected_message(const Frame& frame) {
  return {Code::corrupt, text("unexpected message ", frame.kind)};
}

#define PAWL_MESSAGE(Message)                           \
  template std::string encode<Message>(const Message&); \
  template bool decode<Message>(std::string_view, Message&);
PAWL_MESSAGE(RendezvousRequest)
PAWL_MESSAGE(RendezvousAnswer)
PAWL_MESSAGE(AttachMessage)
PAWL_MESSAGE(JoinMessage)
PAWL_MESSAGE(LayoutMessage)
PAWL_MESSAGE(RestoreMessage)
PAWL_MESSAGE(RestoreBadMessage)
PAWL_MESSAGE(DoneMessage)
PAWL_MESSAGE(FaultMessage)
PAWL_MESSAGE(RendezvousMessage)
PAWL_MESSAGE(FinishMessage)
PAWL_MESSAGE(DetachMessage)
PAWL_MESSAGE(StopAfterMessage)
PAWL_MESSAGE(AttachedMessage)
PAWL_MESSAGE(SeatedMessage)
PAWL_MESSAGE(ArenaMessage)
PAWL_MESSAGE(SlotMessage)
PAWL_MESSAGE(RunningMessage)
PAWL_MESSAGE(NotedMessage)
PAWL_MESSAGE(ValueMessage)
PAWL_MESSAGE(FinishedMessage)
PAWL_MESSAGE(RefusedMessage)
PAWL_MESSAGE(StoppingMessage)
PAWL_MESSAGE(Hello)
PAWL_MESSAGE(WelcomeMessage)
PAWL_MESSAGE(PeerRefusedMessage)
PAWL_MESSAGE(BeatMessage)
PAWL_MESSAGE(BeatBackMessage)
PAWL_MESSAGE(ReportMessage)
PAWL_MESSAGE(PaceMessage)
PAWL_MESSAGE(EqualSumsMessage)
PAWL_MESSAGE(NarrowMessage)
PAWL_MESSAGE(PersistMessage)
PAWL_MESSAGE(ProgressMessage)
PAWL_MESSAGE(PeerRendezvousMessage)
PAWL_MESSAGE(PeerValueMessage)
PAWL_MESSAGE(OpenMessage)
PAWL_MESSAGE(OpenedMessage)
PAWL_MESSAGE(BusyMessage)
PAWL_MESSAGE(LaterMessage)
PAWL_MESSAGE(LayoutWantedMessage)
PAWL_MESSAGE(LayoutTextMessage)
PAWL_MESSAGE(HeldMessage)
PAWL_MESSAGE(BucketMessage)
PAWL_MESSAGE(BucketBadMessage)
PAWL_MESSAGE(SameBucketsMessage)
PAWL_MESSAGE(BucketsWantedMessage)
PAWL_MESSAGE(SealMessage)
PAWL_MESSAGE(AbandonMessage)
PAWL_MESSAGE(TornMessage)
PAWL_MESSAGE(FetchMessage)
PAWL_MESSAGE(SlotBeginMessage)
PAWL_MESSAGE(BucketsBadMessage)
PAWL_MESSAGE(CollectMessage)
PAWL_MESSAGE(CollectedMessage)
PAWL_MESSAGE(QuestionMessage)
PAWL_MESSAGE(AnswerMessage)
#undef PAWL_MESSAGE

}  // namespace pawl::job
