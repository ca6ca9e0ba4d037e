#include "job/daemon/pawld_parts.h"

#include <nlohmann/json.hpp>

#include "env/process.h"

namespace pawl::job {

Trainers::Handlers Pawld::Parts::trainer_handlers(Pawld& pawld) {
  return {.on_request = [&pawld](TrainerProcess& t, const Frame& frame) { pawld.parts_->seats.on_request(t, frame); },
          .on_notice =
              [&pawld](TrainerProcess& t) {
                if (!t.seat) return;
                pawld.parts_->streams.notice(*t.seat);
                pawld.parts_->progress.report();
                pawld.parts_->drains.consider();
              },
          .on_death = [&pawld](TrainerProcess& t, const std::string& how) { pawld.parts_->watch.on_death(t, how); },
          .on_question =
              [&pawld](const std::shared_ptr<Connection>& connection, const Frame& frame) {
                const std::string answer = pawld.parts_->questions.answer(frame.payload, true);
                connection->send(frame_of(AnswerMessage{answer}, frame.id));
              },
          .hold = [&pawld](const std::string& name, int fd) { pawld.keeper_->hold(name, fd); },
          .on_page = [&pawld](TrainerProcess& t) { pawld.parts_->pages.write(t); }};
}

PeerListener::Handlers Pawld::Parts::peer_handlers(Pawld& pawld) {
  return {
      .on_question = [&pawld](const std::string& json) { return pawld.parts_->questions.answer(json, false); },
      .on_data = [&pawld](const auto& connection, const Hello& h) { pawld.parts_->streams.adopt_data(connection, h); },
      .on_fetch = [&pawld](const auto& connection) { pawld.parts_->streams.adopt_fetch(connection); },
      .on_beat = [&pawld](NodeId node, Generation generation) { pawld.on_beat(node, generation); },
      .on_report = [&pawld](NodeId node, Generation g,
                            const SeatReport& report) { pawld.parts_->progress.on_report(node, g, report); },
      .on_paces = [&pawld](NodeId node, Generation g,
                           const std::string& paces) { pawld.parts_->paces.on_paces(node, g, paces); },
      .on_equal_sums = [&pawld](NodeId node, Generation g,
                                const std::string& sums) { pawld.parts_->paths.on_sums(node, g, sums); },
      .on_narrow = [&pawld](const NarrowMessage& order) { pawld.parts_->paths.on_narrow(order); },
      .on_persist = [&pawld](NodeId node, const PersistMessage& told) { pawld.parts_->persist.on_tally(node, told); },
      .on_progress = [&pawld](Generation g, Progress progress) { pawld.parts_->progress.on_progress(g, progress); },
      .on_collect =
          [&pawld](const std::shared_ptr<Connection>& connection, NodeLife from, const Frame& frame) {
            const auto asked = message_in<CollectMessage>(frame);
            if (!asked) return connection->close();
            pawld.parts_->collector.on_report(
                from, asked->report, [weak = std::weak_ptr(connection), id = frame.id](bool taken) {
                  const auto alive = weak.lock();
                  if (!alive) return;
                  alive->send(taken ? frame_of(CollectedMessage{}, id)
                                    : frame_of(PeerRefusedMessage{PeerRefusal::stale, "put it yourself"}, id));
                });
          },
      .on_rendezvous =
          [&pawld](const std::shared_ptr<Connection>& connection, std::uint64_t id, PeerRendezvousMessage asked) {
            const std::weak_ptr<Connection> weak = connection;
            auto is_alive = [weak] { return !weak.expired(); };
            auto on_answer = [weak, id](const RendezvousAnswer& answer) {
              if (auto alive = weak.lock()) alive->send(frame_of(PeerValueMessage{answer}, id));
            };
            pawld.parts_->rendezvous.on_peer_request(asked.generation, std::move(asked.request), {is_alive, on_answer});
          }};
}

Pawld::Parts::Parts(Pawld& pawld)
    : holds(pawld.context_.environment->tasks),
      events(pawld.context_),
      spare_probes(
          pawld.context_, [&pawld](Purpose purpose) { return pawld.hello(purpose); },
          [&pawld] { pawld.context_.drive(); }),
      drain_probes(
          pawld.context_, [&pawld](Purpose purpose) { return pawld.hello(purpose); },
          [&pawld] { pawld.context_.drive(); }),
      mover(
          pawld.context_, events, holds,
          {.on_won =
               [&pawld](JobState state, Revision revision) {
                 pawld.on_change(pawld.context_.mirror.learn(std::move(state), revision, pawld.context_.clock->now()));
               },
           .on_lost = [&pawld](const KeyValue& kv) { pawld.note(kv); },
           .probe =
               [this, &pawld](std::span<const NodeRecord> spares) {
                 return spare_probes.ask(spares, pawld.context_.mirror.state().evicted.size());
               },
           .stored = [this] { return persist.root().stored(); },
           .wished_world = pawld.options_.wished_world,
           .comes_before = [this](const JobState& failed) { return last_checkpoint.comes_before(failed); },
           .write_last = [this](const LastStep& last) { last_checkpoint.lead(last); }}),
      spare_memory(pawld.context_, {.on_refused =
                                        [this](const std::string& why) {
                                          events.tell("spare_refused", nlohmann::json{{"detail", why}}.dump());
                                        },
                                    .on_record_changed = [&pawld] { pawld.registration_->put_again(); }}),
      memory(pawld.context_.environment->memory,
             {.hold = [&pawld](const std::string& name, int fd) { pawld.keeper_->hold(name, fd); },
              .drop = [&pawld](const std::string& name) { pawld.keeper_->drop(name); },
              .let_go =
                  [&pawld](ArenaHandle dropped) {
                    (void)pawld.context_.environment->tasks.start(
                        "let_go", [dropped = std::move(dropped)]() mutable { dropped.reset(); });
                  }},
             &spare_memory),
      health(pawld.context_, events, pawld.options_.run_dir, pawld.token_,
             {.probe = pawld.lines_.probe, .on_changed = [&pawld] { pawld.registration_->put(); }}),
      trainers(*pawld.loop_, pawld.options_.seats_per_node, pawld.options_.job, std::move(pawld.lines_.trainers),
               trainer_handlers(pawld)),
      arenas(pawld.context_, memory),
      pages(pawld.context_, trainers, memory),
      watch(pawld.context_, trainers, mover,
            {.spawn =
                 [&pawld](std::uint32_t index, std::span<const std::string> environment) {
                   pawld.keeper_->spawn_trainer(index, environment);
                 },
             .kill = [&pawld](std::uint32_t index) { pawld.keeper_->kill_trainer(index); },
             .on_parked_changed =
                 [&pawld] {
                   if (pawld.registration_) pawld.registration_->put_again();
                 },
             .state_of =
                 [&pawld](std::uint64_t pid) {
                   return pawld.context_.environment->processes.state(static_cast<pid_t>(pid));
                 },
             .tell = [this](const std::string& kind, const std::string& fields) { events.tell(kind, fields); },
             .show = [&pawld](std::uint32_t index, bool shown) { pawld.keeper_->show_trainer(index, shown); }}),
      persist(pawld.context_, memory, events, pawld.lines_.checkpoints.get(),
              {.send = [&pawld](NodeId node, const Frame& frame) { return pawld.neighbours_->send(node, frame); },
               .wanted = [this] { return pages.persist_wanted(); },
               .show_stored = [this](Step newest) { pages.show_stored(newest); }}),
      last_checkpoint(
          pawld.context_, memory, events, pawld.lines_.checkpoints.get(),
          {.report = [this](Cause cause,
                            std::vector<Struck> struck) { mover.report(std::move(cause), std::move(struck)); },
           .end = [this](const JobState& ended, const std::string& why) { mover.move(ended, why); },
           .stored_at =
               [this, &pawld](Step step) {
                 const PersistRecord& record = persist.record();
                 const bool is_it = record.published == step && record.generation == pawld.context_.mirror.state().ran;
                 return is_it ? persist.root().path_of(step) : std::string();
               },
           .order_of = [this](std::uint64_t attempt, Step step) { return persist.root().order_of(attempt, step); },
           .leave = [&pawld](int code) { pawld.end_job(code); }}),
      retention(pawld.context_, events, pawld.lines_.checkpoints.get(),
                [this]() -> const PersistRecord& { return persist.record(); }),
      progress(pawld.context_,
               {.send = [&pawld](NodeId node, const Frame& frame) { return pawld.neighbours_->send(node, frame); },
                .own_report = [this](Progress known) { return pages.report(known); },
                .show =
                    [this](Progress known, bool committed) {
                      persist.before_show(known);
                      pages.show(known, committed);
                      paths.on_progress(known);
                    },
                .on_committed =
                    [this] {
                      job_end.consider_finish();
                      drains.consider();
                      generations.on_committed();
                    },
                .is_up = [&pawld](NodeId node) { return pawld.neighbours_->is_up(node); },
                .before_report = [this](const SeatReport& report, bool anew) { paths.before_report(report, anew); }}),
      paces(pawld.context_, trainers, events,
            {.send = [&pawld](NodeId node, const Frame& frame) { (void)pawld.neighbours_->send(node, frame); }}),
      paths(pawld.context_, memory, events,
            {.send = [&pawld](NodeId node, const Frame& frame) { return pawld.neighbours_->send(node, frame); }}),
      rendezvous_log(pawld.context_.environment->memory, pawld.options_.job,
                     [&pawld](const std::string& name, int fd) { pawld.keeper_->hold(name, fd); }),
      rendezvous(
          *pawld.context_.clock, rendezvous_log,
          {.generation = [&pawld] { return pawld.context_.mirror.generation(); },
           .is_root = [&pawld] { return pawld.context_.mirror.is_root(); },
           .is_open = [&pawld] { return !pawld.context_.mirror.is_in(JobPhase::quiescing); },
           .send_to_root =
               [&pawld](std::uint64_t id, const RendezvousRequest& request) {
                 const JobMirror& mirror = pawld.context_.mirror;
                 const auto root = mirror.node_at(0);
                 return root && pawld.neighbours_->send(
                                    *root, frame_of(PeerRendezvousMessage{mirror.generation(), request}, id));
               },
           .reaches_root =
               [&pawld] {
                 const auto root = pawld.context_.mirror.node_at(0);
                 return root && pawld.neighbours_->is_up(*root);
               },
           .send_by_another =
               [&pawld](std::uint64_t id, const RendezvousRequest& request, std::size_t turn) {
                 const JobMirror& mirror = pawld.context_.mirror;
                 std::vector<Member> others = mirror.linked_members();
                 std::erase_if(others, [&](const Member& other) { return !pawld.neighbours_->is_up(other.life.node); });
                 if (others.empty()) return;
                 const NodeId node = others[turn % others.size()].life.node;
                 pawld.neighbours_->send(node, frame_of(PeerRendezvousMessage{mirror.generation(), request}, id));
               }}),
      streams(pawld.context_, memory, arenas, holds, progress.bits(),
              {.hello = [&pawld](Purpose purpose) { return pawld.hello(purpose); },
               .on_held = [this] { progress.report(); },
               .on_given_up =
                   [this](const GivenUpStep& step) {
                     protection.on_given_up(step);
                     progress.report();
                     job_end.consider_finish();
                   }}),
      collector(pawld.context_),
      reports(*pawld.loop_, pawld.context_,
              {.hello = [&pawld](Purpose purpose) { return pawld.hello(purpose); },
               .collect_here =
                   [this](NodeReport report, ReportCollector::Answered answered) {
                     collector.collect(std::move(report), std::move(answered));
                   }}),
      protection(
          {pawld.context_, trainers, memory, streams, events}, [this] { return progress.progress(); },
          [this, &pawld] {
            std::vector<NodeId> cut = progress.neighbours();
            std::erase_if(cut, [&pawld](NodeId node) { return pawld.neighbours_->is_up(node); });
            return cut;
          }),
      imports(pawld.context_, trainers, arenas, streams, mover, events,
              [&pawld](Purpose purpose) { return pawld.hello(purpose); },
              {pawld.lines_.checkpoints.get(), [this](Step step) { return persist.root().path_of(step); }}),
      job_end(pawld.context_, trainers, mover, [this] { return progress.progress(); },
              {.is_given_up = [this](const TrainerProcess& trainer) { return pages.has_given_up_last(trainer); },
               .do_again =
                   [this, &pawld](TrainerProcess& trainer) {
                     watch.on_fault(trainer, pawld.context_.mirror.generation(),
                                    text("the last step's copy was given up: step ", trainer.last_steps.commit_first));
                   },
               .may_end = [this] { return persist.may_end() && retention.may_end(); }}),
      drains(pawld.context_, trainers, mover, events,
             {.progress = [this] { return progress.progress(); },
              .spares = {.probe = [this](std::span<const NodeRecord> spares) { return drain_probes.ask(spares, {}); },
                         .forget_probes = [this] { drain_probes.forget(); }}}),
      recovery({pawld.context_, trainers, memory, imports, mover, events}),
      seats({pawld.context_, trainers, memory, arenas, imports, streams, watch, rendezvous, job_end, mover, holds,
             reports}),
      generations({pawld.context_, trainers, memory, pages, watch, seats, imports, streams, progress, protection,
                   rendezvous, events, holds, reports},
                  {.end_job = [&pawld](int code) { pawld.end_job(code); },
                   .reset = [&pawld](const std::string& reason) { pawld.keeper_->reset(reason); }}),
      questions(
          {pawld.context_, trainers, memory, holds}, pawld.token_,
          {.progress = [this] { return progress.progress(); },
           .lease_age = [&pawld]() -> std::optional<Duration> {
             const Duration renewed(pawld.lease_renewed_ns_.load());
             if (renewed == Duration::zero()) return std::nullopt;
             return pawld.context_.clock->boottime() - renewed;
           },
           .bytes_sent = [this] { return streams.bytes_sent(); },
           .bytes_received = [this] { return streams.bytes_received(); },
           .bytes_spared = [this] { return streams.bytes_spared(); },
           .stopped_by = [this] { return protection.stopped_by(); },
           .unhealthy = [&pawld] { return pawld.node_record().unhealthy; },
           .stragglers = [this] { return paces.stragglers(); },
           .differing = [this] { return paths.differing(); },
           .checkpoints = [this] { return std::pair(persist.record(), persist.tally()); },
           .neighbours =
               [&pawld] { return pawld.neighbours_ ? pawld.neighbours_->view() : std::vector<Neighbours::View>(); },
           .loop_turns = [&pawld] { return pawld.loop_->turns(); },
           .waits = [this] { return recovery.waits(); }}),
      peers(*pawld.loop_, pawld.context_, pawld.token_, std::move(pawld.lines_.peers), peer_handlers(pawld)) {}

}  // namespace pawl::job
