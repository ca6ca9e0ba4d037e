"""Habits of ordinary scripts that a careless recovery gets wrong (traps/): a trainer dies, and the result has the bits
of the plain run, or pawl refuses before the first step and says why."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
from trap_job import TrapTest, harness  # noqa: E402

USED_GRADIENTS = ("", "1") if hasattr(torch.cpu.Stream, "record_event") else ("",)  # torch 2.6 has no FSDP2 on CPUs


class HabitTest(TrapTest):
    def test_a_scaler_that_is_switched_off(self):
        self.equal("disabled_scaler")

    def test_optimizer_state_that_appears_late(self):
        self.equal("late_head", kill="1:6,0:10")

    def test_buffers_that_appear_late(self):
        self.equal("late_buffer", kill="1:6,0:10")

    def test_the_module_inside_of_ddp_is_protected(self):
        self.equal("inner_module", kill="1:13node", spares=1)

    def test_processes_that_the_script_forks_in_a_block(self):
        for loop in ("steps", "loop"):
            with self.subTest(loop=loop):
                self.equal("forking", kill="1:6,0:10", TRAP_LOOP=loop)

    def test_an_optimizer_that_is_set_back(self):
        self.equal("rollback", kill="1:7,0:10")

    def test_averages_and_clamps_after_the_block(self):
        self.equal("averages")

    def test_an_average_in_a_step_that_the_scaler_skips(self):
        self.equal("skipped_average", kill="1:6,0:10")

    def test_a_teacher_that_is_written_while_its_state_is_copied(self):
        self.equal("momentum_teacher", "is written in a step before its optimizer steps", "step.fence()")

    def test_a_teacher_that_is_written_where_torch_counts_no_writes(self):
        self.equal("data_teacher", "is written in a step before its optimizer steps", "step.fence()", kill="1:6,0:10")

    def test_weights_that_are_written_at_the_loops_top(self):
        self.equal("early_average", "is written in a step before its optimizer steps", "step.fence()", kill="1:6,0:10")

    def test_processes_that_die_once_they_know_of_a_write(self):
        # Step 11 is committed by then; both slots before it still hold step 10, which is right.
        self.equal("late_write", "was written while it was copied", kill="0:12,1:12")

    def test_layers_that_ranks_use_in_another_order(self):
        self.equal("turned_order", kill="1:6,0:10")

    def test_a_model_that_is_trained_now_and_then(self):
        said = self.equal("rare_maker", kill="1:7,0:11")
        self.assertNotIn("gradients are added up", said)

    def test_buckets_of_a_large_model_that_are_laid_in_a_lost_step(self):
        self.equal("big_maker", "DDP laid its buckets in a step that is lost", "starts anew in its seat",
                   kill="1:7,0:11")

    def test_a_death_while_buckets_are_laid(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                said = self.equal("laying_death", "DDP laid its buckets in a step that is lost", kill=f"{rank}:4")
                self.assertNotIn("SIGSEGV", said)

    def test_unfreezing_and_an_evaluation_that_is_cut_off(self):
        self.equal("unfreezing", "evaluation was cut short", kill="1:6,0:10")

    def test_a_group_of_its_own_and_an_exception_in_backward(self):
        self.equal("own_group", "1.0 of 2 ranks are here")

    def test_gradients_added_up_over_blocks_from_a_checkpoint_on(self):
        self.equal("accumulation", "gradients are added up over several steps", kill="1:11")

    def test_gradients_that_are_dropped_once_and_added_up_from_then_on(self):
        self.equal("looked_before", "gradients are added up over several steps", kill="1:9")

    def test_a_generator_that_leaves_gradients_in_its_critic(self):
        said = self.equal("adversaries", "steps are committed by now", kill="1:9,0:12")
        self.assertNotIn("gradients are added up", said)

    def test_used_gradients_that_are_zeroed_now_and_then(self):
        self.equal("used_gradients", "added to by the next step", "steps are committed by now", kill="1:7,0:11",
                   TRAP_HOW="each fourth step", TRAP_SHARDED="")
        if "1" in USED_GRADIENTS:  # FSDP2 shows them too late to be sure
            self.equal("used_gradients", "it seems that step", kill="", TRAP_HOW="each fourth step", TRAP_SHARDED="1")

    def test_used_gradients_that_are_zeroed_in_place(self):
        for sharded in USED_GRADIENTS:
            for how in ("in place", "after the block"):
                with self.subTest(sharded=sharded, how=how):
                    said = self.equal("used_gradients", "steps are committed by now", kill="1:9", TRAP_HOW=how,
                                      TRAP_SHARDED=sharded)
                    self.assertNotIn("is not captured", said)

    def test_ranks_that_an_unprotected_variable_steers_otherwise(self):
        for steers, *words in (("rate", "lr of AdamW is 0."), ("norm", "last.weight (weight)")):
            with self.subTest(steers=steers):
                _, said = self.killed("unseen_rate", kill="1:11", code=1, TRAP_STEERS=steers)
                self.assert_says(said, "differ in what DDP and replicas have alike", *words, "pawl drill",
                                 "carried from step to step and not protected: value (0.005)")
                self.assertNotIn("Traceback", said)
        _, said = self.killed("unseen_rate", kill="1:11", TRAP_STEERS="rate", TRAP_MISMATCH="warn")
        self.assert_says(said, "differ in what DDP and replicas have alike: lr of AdamW is 0.")

    def test_state_that_outgrows_its_room(self):
        self.equal("long_history", "protection stands still", "the largest is state", kill="1:12")

    def test_large_tensors_that_are_state(self):
        said = self.equal("large_state", kill="1:5")
        self.assertNotIn("stands still", said)

    def test_a_batch_that_is_fetched_ahead(self):
        self.equal("prefetch", kill="1:6,0:10")

    def test_a_batch_that_is_fetched_ahead_and_not_protected(self):
        self.refused("prefetch_unprotected", "x, which DistributedDataParallel is given in step 3, was there before",
                     'job.protect(state={"x": x})')

    def test_steps_and_batches_zipped(self):
        self.refused("zipped", "1 batch was drawn from the ElasticSampler before step 1", "job.batches(loader)")

    def test_a_loader_whose_place_nobody_knows(self):
        self.refused("unprotected_loader", "train_batches gives batches to one step after the other", "job.batches(")

    def test_a_loader_with_workers_and_the_death_of_a_node(self):
        self.equal("loader_batches", kill="1:9node,0:17", spares=1)

    def test_a_plain_loop_over_a_loader_that_shuffles(self):
        self.equal("loader_loop", kill="0:16,1:17,1:25")

    def test_two_loaders_behind_a_bar_that_outlives_the_loop(self):
        self.equal("two_loaders", kill="0:16,1:17,1:25")

    def test_a_dataset_that_has_no_place(self):
        self.refused("stream", "Lines, an IterableDataset, can't be set to a place", "StatefulDataLoader")

    def test_a_stream_that_is_told_its_epoch(self):
        self.equal("told_stream", kill="1:9,0:14,1:21")

    def test_batches_from_a_generator_of_ones_own(self):
        _, said = self.killed("own_batches", code=1)
        self.assert_says(said, "x, which DistributedDataParallel is given", "own_batches.py:",
                         "was done before the loss", 'pawl.init(on_mismatch="warn")')

    def test_a_log_of_the_steps_that_are_committed(self):
        self.equal("commit_log", kill="0:7,1:11")

    def test_what_ranks_agreed_on_before_the_first_step(self):
        self.equal("build_collectives", kill="0:6,1:10,0:14")

    def test_what_ranks_agreed_on_when_all_of_them_die(self):
        _, said = self.killed("build_collectives", kill="0:6,1:6", code=1)
        self.assert_says(said, "gave other values when the job began", "no seat of its group is left")
        self.equal("averages", kill="0:9,1:9")

    def test_what_each_rank_got_of_its_own_before_the_first_step(self):
        self.refused("build_scatter", "scatter", "a result of its own", "all_gather")

    def test_shards_of_all_sizes(self):
        if not hasattr(torch.cpu.Stream, "record_event"):  # torch 2.6
            self.refused("fsdp2", "can't compute on CPUs", "use PyTorch 2.7 or later")
            return
        said = self.equal("fsdp2", kill="1:6,0:10,1:13node", spares=1)
        self.assertNotIn("starts cold", said)

    @unittest.skipUnless(hasattr(torch.cpu.Stream, "record_event"), "FSDP2 of PyTorch 2.6 can't compute on CPUs")
    def test_checkpoints_during_whose_saves_trainers_die(self):
        """A rank that writes, the one that publishes, and one when that is done: each checkpoint is that of the
        undisturbed run."""
        plain = self.plain_folder("saved_shards")

        def look(folder):
            names = sorted(name for name in os.listdir(folder) if name.startswith("step"))
            self.assertEqual(["step12", "step16", "step4", "step8"], names)
            for name in names:
                diff = subprocess.run([os.environ.get("PAWL", "pawl"), "diff", os.path.join(plain, name),
                                       os.path.join(folder, name)], capture_output=True, text=True, check=False)
                self.assertEqual(0, diff.returncode, diff.stdout + diff.stderr)
        self.equal("saved_shards", "save was cut short by a loss", kill="1:8,0:12,1:16", spares=1, look=look)

    def test_layers_that_ranks_share(self):
        said = self.equal("tensor_parallel", kill="1:6,0:10,1:13node", spares=1)
        self.assertNotIn("starts cold", said)

    def test_a_model_without_its_optimizer(self):
        self.refused("no_optimizer", "is trainable, but no protected optimizer has it", "job.protect()")


if __name__ == "__main__":
    harness.main()
