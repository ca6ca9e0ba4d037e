"""What the demo prints and draws."""
import os
import shutil
import subprocess
import sys

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def paint(text, colour):
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{COLOURS[colour]}m{text}\033[0m"


def line(text=""):
    print(text, flush=True)


def bytes_text(count):
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def ms_text(value):
    return "  –" if value is None else f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def event_text(event):
    """An event of the job in a few words; None: not worth a line."""
    kind, node = event.get("kind"), event.get("node")
    if kind == "fault_detected":
        who = [f"{key} {event['victim_' + key]}" for key in ("node", "seat") if event.get("victim_" + key) is not None]
        return paint(f"node {node} sees it: {event.get('fault', 'fault').replace('_', ' ')}", "yellow") + \
            f" ({' '.join(who)}: {event.get('detail', '')})"
    if kind == "frozen":
        return f"node {node} has frozen its slots"
    if kind == "restore_decided":
        return f"node {node} decides: generation {event.get('generation')} goes on from step {event.get('resume')}"
    if kind == "seat_restored" and event.get("source") == "storage":
        return (f"seat {event.get('seat')} restored from storage, {event.get('path')}: "
                f"{bytes_text(event.get('bytes', 0))} in {ms_text(event.get('ms'))}")
    if kind == "seat_restored":
        return (f"seat {event.get('seat')} restored from the {str(event.get('source')).replace('_', ' ')} on node "
                f"{event.get('from')}: {bytes_text(event.get('bytes', 0))} in {ms_text(event.get('ms'))}")
    if kind == "running":
        return paint(f"running again, generation {event.get('generation')}", "green")
    if kind in ("node_joined", "node_evicted", "spare_waiting", "job_failed"):
        return f"node {node}: {kind.replace('_', ' ')}" + (f": {event['verdict']}" if event.get("verdict") else "")
    return None


def draw_losses(path, ours, reference, kills, title):
    """Both curves; a dashed line at each kill. False where there is no gnuplot."""
    if shutil.which("gnuplot") is None:
        return False
    arrows = "\n".join(f'set arrow from first {kill["step"] or 0}, graph 0 to first {kill["step"] or 0}, graph 1 '
                       f'nohead '
                       f'dt 2 lc rgb "#cc3333"\nset label "node {kill["node"]} killed" at first {kill["step"] or 0}, '
                       f'graph 0.97 right offset -0.6,0 tc rgb "#cc3333"' for kill in kills)
    blocks = "\n".join(f"${name} << E\n" + "\n".join(f"{step} {loss}" for step, loss in points) + "\nE"
                       for name, points in (("reference", reference), ("ours", ours)))
    script = f"""set terminal pngcairo size 960,540 font "sans,11"
set output "{path}"
set title "{title}"
set xlabel "step"
set ylabel "loss (nats per byte)"
set grid lc rgb "#dddddd"
set border 3
set tics nomirror
{arrows}
{blocks}
plot $reference using 1:2 with lines lw 6 lc rgb "#bcd4ee" title "undisturbed, without pawl", \\
     $ours using 1:2 with lines lw 1.6 lc rgb "#1f3b63" title "with pawl, nodes killed"
"""
    done = subprocess.run(["gnuplot"], input=script, text=True, capture_output=True, check=False)
    return done.returncode == 0 and os.path.exists(path)
