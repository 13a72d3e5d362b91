"""Results as a table in markdown, and as a plot."""

from pathlib import Path
from typing import Any

from benchmarks.workloads import Workload

Results = dict[str, dict[str, Any]]


def table(workload: Workload, results: Results) -> str:
    """A markdown table, the quickest first; `private` is memory of one of the jobs that no other shares, as a
    part of what a process has that imported torch and nothing else."""
    lines = [
        *_by_workers(workload, results),
        f"\n{workload.name}: {workload.about}\n",
        "| | samples/s | GB/s | of the limit (range) | by CPU | start s | MB (PSS) | jobs' MB | private "
        "| disk MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = sorted(results.items(), key=lambda pair: -pair[1].get("samples_per_s", 0))
    for name, result in order:
        if "samples_per_s" not in result or "error" in result:
            lines.append(f"| {name} | {result.get('error', 'no result')} | | | | | | | | |")
            continue
        low, high = result["ratio_range"]
        cells = [
            f"{result['samples_per_s']:,.0f}",
            f"{result['bytes_per_s'] / 1e9:.2f}",
            f"{result['ratio']:.3f} ({low:.3f}-{high:.3f})",
            f"{result['cpu_ratio']:.3f}" if "cpu_ratio" in result else "",
            f"{min(result['first_batch_s'].values()):.2f}",
            _mega(result.get("pss_bytes")),
            _mega(result.get("jobs_pss_bytes")),
            f"{result['jobs_private']:.2f}" if result.get("jobs_private") else "",
            _mega(result.get("disk_bytes")),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_workers(workload: Workload, results: Results) -> list[str]:
    """The ratios by number of DataLoader workers, where several numbers were asked for."""
    found = {name: result["by_workers"] for name, result in results.items() if "by_workers" in result}
    numbers = sorted({int(workers) for by_workers in found.values() for workers in by_workers})
    if len(numbers) < 2:
        return []
    heads = [f"{number} workers" for number in numbers]
    lines = [
        f"\n{workload.name}: of the limit, by DataLoader workers; MB through /dev/shm in an epoch\n",
        f"| | {' | '.join(heads)} | shared MB |",
        "|---|" + "---|" * (len(numbers) + 1),
    ]
    for name, by_workers in found.items():
        cells = [f"{by_workers[str(n)]['ratio']:.3f}" if str(n) in by_workers else "" for n in numbers]
        shared_bytes = max(one["shared_bytes"] for one in by_workers.values())
        lines.append(f"| {name} | {' | '.join(cells)} | {_mega(shared_bytes)} |")
    return lines


def _mega(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:,.0f}"


def plot(workload: Workload, results: Results, path: Path, *, is_read: bool) -> None:
    """Bars of the ratio to the limit, on a logarithmic axis; none without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    shown = sorted((r["ratio"], name) for name, r in results.items() if r.get("ratio") and "error" not in r)
    figure = Figure(figsize=(8, 0.4 * len(shown) + 1.2), layout="constrained")
    axes = figure.subplots()
    colours = ["#2a6f97" if name.startswith("prepcache") else "#b0b7bf" for _, name in shown]
    bars = axes.barh([name for _, name in shown], [ratio for ratio, _ in shown], color=colours)
    axes.bar_label(bars, [f"{ratio:.3g}" for ratio, _ in shown], padding=3)
    axes.set_xscale("log")
    axes.set_xlim(right=2 * max(1.0, *(ratio for ratio, _ in shown)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    more = ", each batch read once" if is_read else ""
    axes.set_title(f"{workload.name}: {workload.about}; shuffled, warm{more}", fontsize=10)
    axes.set_xlabel(f"samples/s, as a part of the speed of copying the same bytes{more}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
