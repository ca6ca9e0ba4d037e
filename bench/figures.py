"""Figures with their spread, as numbers for JSON and as text for a table."""
import statistics


def at(values, share):
    """The value below which that share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figure(values):
    """Median, and the 10th and 90th of a hundred; None: there are no values."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "p10": at(values, 0.1), "p90": at(values, 0.9), "count": len(values)}


def text(found, digits=1):
    if found is None:
        return "–"
    return f"{found['median']:.{digits}f} ({found['p10']:.{digits}f} .. {found['p90']:.{digits}f})"


def table(heads, rows):
    return [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(f"| {' | '.join(row)} |" for row in rows), ""]
