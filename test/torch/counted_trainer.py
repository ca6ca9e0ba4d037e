"""trainer.py, which after each step also marks how many groups there are; with --untraceable also hidden from
tracers."""
import sys

import paced_job
import trainer


class Counting(trainer.Training):
    def between(self, step):
        super().between(step)
        from pawl import groups
        if self.job.generation:  # plain training has no managed groups
            self.record.mark(step=int(step), generation=self.job.generation, groups=groups.live_count(),
                             created=groups.created_count())


if __name__ == "__main__":
    if "--untraceable" in sys.argv:
        sys.argv.remove("--untraceable")
        paced_job.forbid_tracing()
    trainer.Training = Counting
    trainer.main()
