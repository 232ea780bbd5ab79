# SPDX-License-Identifier: BSL-1.0
"""Draws one training step of each rank from the traces that DDPP_TRACE=FILE has the reducer write."""
import json
import pathlib

WIDTH, LEFT, LANE, GAP = 900, 165, 26, 18
COLOURS = {"forward and backward": "#9ecae1", "wait": "#fdae6b"}
REDUCTIONS = ["#31a354", "#74c476"]  # in turn


def read(path):
    """The events of a trace, whose closing bracket is left out."""
    return json.loads(pathlib.Path(path).read_text().rstrip().rstrip(",") + "]")


def last_step(events):
    begin = max(event["ts"] for event in events if event["name"] == "forward and backward")
    return [event for event in events if event.get("ts", 0) >= begin]


def svg(traces):
    steps = [last_step(read(trace)) for trace in sorted(traces)]
    begin = min(event["ts"] for step in steps for event in step)
    end = max(event["ts"] + event.get("dur", 0) for step in steps for event in step)
    height = GAP + len(steps) * (2 * LANE + GAP) + 40

    def x(time):
        return LEFT + (time - begin) / (end - begin) * (WIDTH - LEFT - 20)

    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
           'font-size="12"><rect width="100%" height="100%" fill="white"/>')
    for rank, step in enumerate(steps):
        top = GAP + rank * (2 * LANE + GAP)
        for lane, name in enumerate(["program", "communication"]):
            yield f'<text x="{LEFT - 10}" y="{top + lane * LANE + 17}" text-anchor="end">rank {rank}, {name}</text>'
        for event in step:
            y, at = top + (event["tid"] - 1) * LANE, x(event["ts"])
            if event["ph"] == "i":
                yield (f'<path d="M{at:.1f} {y + 2}V{y + 2 * LANE - 4}" stroke="black"/>'
                       f'<text x="{at - 3:.1f}" y="{y - 3}" font-size="10" text-anchor="middle">{event["name"]}</text>')
                continue
            name = event["name"].replace("reduction of ", "")
            colour = COLOURS.get(event["name"]) or REDUCTIONS[int(name.split()[-1]) % 2]
            length = x(event["ts"] + event["dur"]) - at
            yield f'<rect x="{at:.1f}" y="{y}" width="{max(length, 0.5):.1f}" height="{LANE - 4}" fill="{colour}"/>'
            if length > 7 * len(name):
                yield f'<text x="{at + length / 2:.1f}" y="{y + 15}" text-anchor="middle">{name}</text>'
    spacing = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if (end - begin) / 1000 / s <= 12)
    for tick in range(0, int((end - begin) / 1000) + 1, spacing):
        at = x(begin + 1000 * tick)
        yield (f'<path d="M{at:.1f} {height - 38}v5" stroke="black"/>'
               f'<text x="{at:.1f}" y="{height - 20}" text-anchor="middle">{tick} ms</text>')
    yield "</svg>"


def draw(traces, path):
    pathlib.Path(path).write_text("\n".join(svg(traces)) + "\n")
