"""Names and colours of classes in pictures."""

from __future__ import annotations

#: Standard classes of LAS 1.4 (ASPRS).
ASPRS = {
    0: "never classified", 1: "unclassified", 2: "ground", 3: "low vegetation", 4: "medium vegetation",
    5: "high vegetation", 6: "building", 7: "low point (noise)", 8: "model key point", 9: "water", 10: "rail",
    11: "road surface", 12: "overlap", 13: "wire guard", 14: "wire conductor", 15: "transmission tower",
    16: "wire connector", 17: "bridge deck", 18: "high noise",
}  # fmt: skip

# Colours that are told apart on a dark and on a light ground.
_CYCLE = (
    "#4c8dff", "#f5a524", "#3dbb78", "#e5484d", "#a875ff", "#23c2c9", "#e86bb0", "#b0bf3a",
    "#9a7b5c", "#8d99a8", "#7fa8ff", "#ffcf70", "#86dfae", "#ff8f91", "#cdaeff", "#86e3e7", "#f7abd4",
    "#d8e37f", "#c9ad90", "#c3ccd6",
)  # fmt: skip
# Colours that people expect, by a word in the name; the first that fits wins.
_BY_WORD = {
    "high vegetation": "#2f9e57", "low vegetation": "#a3d977", "vegetation": "#46b96b", "tree": "#46b96b",
    "grass": "#a3d977", "building": "#d9694f", "roof": "#d9694f", "wall": "#c9b18f", "road": "#8d8f98",
    "ground": "#a58a6a", "floor": "#a58a6a", "terrain": "#a58a6a", "water": "#4c8dff", "vehicle": "#5b8def",
    "car": "#5b8def", "pole": "#f2c33d", "sign": "#f2c33d", "person": "#e53f71", "pedestrian": "#e53f71",
    "noise": "#ff3b3b", "table": "#b07be0", "chair": "#f5a524", "unclassified": "#8d99a8",
    "never classified": "#666f7c",
}  # fmt: skip


def class_colour(place: int, name: str) -> str:
    """Colour "#rrggbb" of the class at `place` in a legend: by its name, else the next of a cycle."""
    for word, colour in _BY_WORD.items():
        if word in name.lower():
            return colour
    return _CYCLE[place % len(_CYCLE)]
