"""Whether this machine is quiet enough for a figure to mean something: what others use of its cores, before and
after."""
import os
import time

WINDOW_S = 0.5
FOREIGN_MAX = 0.10  # of all cores; past it a figure is said to be doubtful
STEAL_MAX = 0.02


def cpu_times():
    """(busy, idle, stolen) core seconds since boot."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, idle, waiting, hard, soft, stolen, *_ = map(int, file.readline().split()[1:])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + hard + soft) / tick, (idle + waiting) / tick, stolen / tick


def share_in_use():
    """The share of all cores that is in use right now, asked while nothing of ours runs."""
    busy, _, stolen = cpu_times()
    began = time.monotonic()
    time.sleep(WINDOW_S)
    busy_after, _, stolen_after = cpu_times()
    return (busy_after - busy + stolen_after - stolen) / (time.monotonic() - began) / os.cpu_count()


class Load:
    """`quiet()` between the parts of a measurement, when nothing of ours runs."""

    def __init__(self):
        self.foreign = []
        self.began, self.stolen = time.monotonic(), cpu_times()[2]

    def quiet(self):
        self.foreign.append(share_in_use())

    def told(self):
        stolen = (cpu_times()[2] - self.stolen) / (time.monotonic() - self.began) / os.cpu_count()
        return {"cores": os.cpu_count(), "foreign_share": [round(share, 3) for share in self.foreign],
                "stolen_share": round(stolen, 4), "load_average": round(os.getloadavg()[2], 2)}

    def warnings(self):
        told, found = self.told(), []
        worst = max(told["foreign_share"], default=0.0)
        if worst > FOREIGN_MAX:
            found.append(f"other work took up to {100 * worst:.0f} % of the machine between the rounds "
                         f"(median {100 * sorted(told['foreign_share'])[len(self.foreign) // 2]:.0f} %): "
                         f"the ratios hold for a busy machine only")
        if told["stolen_share"] > STEAL_MAX:
            found.append(f"the host took {100 * told['stolen_share']:.0f} % of the cores' time away")
        return found
