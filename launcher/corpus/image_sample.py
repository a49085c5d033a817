"""Draw a small set of images in CIFAR-10's binary format: ten classes, each a figure with a texture and a colour.

No single pixel identifies a class: figures vary in position and size, textures in phase and light-dark order, colours
in hue and brightness, backgrounds in everything, and all of it is noisy. Two classes share each figure and hue, so a
model that does not see textures, such as a linear one, is right on at most half of the images.

    class    0  1  2  3  4  5  6  7  8  9
    hue      0  1  2  3  4  0  1  2  3  4
    figure   0  1  2  3  4  0  1  2  3  4
    texture  0  0  1  1  2  2  3  3  4  4
"""

from __future__ import annotations

from collections.abc import Callable
from colorsys import hsv_to_rgb
from pathlib import Path
from random import Random

from launcher.corpus.corpus_files import asides_together
from launcher.corpus.images import CHANNELS, CLASSES, META_FILE, SIDE, TEST_FILE, TRAIN_FILES

TRAIN_COUNT, TEST_COUNT = 2000, 500  # images
PIXELS = SIDE * SIDE
HUES = ("red", "yellow", "green", "blue", "violet")
HUE_SPREAD = 0.05  # of a full turn, in both directions
NOISE = 25  # of 255, in both directions

Mask = int  # PIXELS bytes, first pixel in the lowest: 255 for pixels inside, else 0
ALL: Mask = (1 << 8 * PIXELS) - 1

# Functions of (x, y, r): True if the pixel (x, y) is inside the figure of radius r around the origin.
FIGURES: dict[str, Callable[[float, float, float], bool]] = {
    "disc": lambda x, y, r: x * x + y * y <= r * r,
    "square": lambda x, y, r: max(abs(x), abs(y)) <= 0.85 * r,
    "triangle": lambda x, y, r: -r <= y <= 0.8 * r and abs(x) <= 0.6 * (y + r),
    "cross": lambda x, y, r: min(abs(x), abs(y)) <= 0.4 * r and max(abs(x), abs(y)) <= 1.1 * r,
    "ring": lambda x, y, r: 0.3 * r * r <= x * x + y * y <= 1.3 * r * r,
}
PERIOD = 6  # pixels after which a texture repeats
# Functions of (x, y): True if this pixel of the figure is light, False if it is dark.
TEXTURES: dict[str, Callable[[int, int], bool]] = {
    "plain": lambda x, y: True,  # noqa: ARG005
    "rows": lambda x, y: y % 6 < 3,  # noqa: ARG005
    "columns": lambda x, y: x % 6 < 3,  # noqa: ARG005
    "checks": lambda x, y: (x // 3 + y // 3) % 2 == 0,
    "dots": lambda x, y: x % 6 < 2 and y % 6 < 2,
}


# Hue, figure and texture of each class
KINDS = tuple((label % 5, tuple(FIGURES)[label % 5], tuple(TEXTURES)[label // 2]) for label in range(CLASSES))


def write_image_sample(directory: Path) -> tuple[Path, ...]:
    """Write 2,000 training images in five files, 500 test images in one, and the class names. Return the paths.

    All files are written or none. Existing files are replaced. The files are byte-identical on every machine.
    `image_sample_files` gives the order of the paths.

    Raises:
        UnreadableError: the directory cannot be written.
    """
    paths = image_sample_files(directory)
    with asides_together(paths) as asides:
        *records, meta = asides
        counts = (*[TRAIN_COUNT // len(TRAIN_FILES)] * len(TRAIN_FILES), TEST_COUNT)
        for number, (aside, count) in enumerate(zip(records, counts, strict=True)):
            random = Random(number)
            aside.write_bytes(b"".join(_record(place % CLASSES, random) for place in range(count)))
        names = (f"{HUES[hue]}-{figure}-{texture}\n" for hue, figure, texture in KINDS)
        meta.write_text("".join(names), encoding="utf-8")
    return paths


def image_sample_files(directory: Path) -> tuple[Path, ...]:
    """Return the paths of the files that `write_image_sample` writes, in the same order."""
    return tuple(directory / name for name in (*TRAIN_FILES, TEST_FILE, META_FILE))


def _record(label: int, random: Random) -> bytes:
    """Draw a random image of class `label`. Return its record: the label byte, then the pixels by channel."""
    number, shape, texture = KINDS[label]
    figure, light = _masks(shape, texture, random)
    hue = number / len(HUES) + random.uniform(-HUE_SPREAD, HUE_SPREAD)
    saturation, value = random.uniform(0.6, 1.0), random.uniform(0.7, 1.0)
    light_colour = hsv_to_rgb(hue % 1, saturation, value)
    dark_colour = hsv_to_rgb(hue % 1, saturation, 0.2 * value)
    if random.random() < 0.5:
        light_colour, dark_colour = dark_colour, light_colour
    background_colour = hsv_to_rgb(random.random(), random.uniform(0.0, 0.4), random.random())
    layers = ((light_colour, light), (dark_colour, figure & ~light), (background_colour, ALL & ~figure))
    record = bytes([label])
    for channel in range(CHANNELS):
        noise, plane = random.randbytes(PIXELS), 0
        for colour, mask in layers:  # its share of 255 inside the mask, plus uniform noise
            level = 255 * colour[channel]
            table = bytes(min(255, max(0, round(level + NOISE * (drawn / 127.5 - 1)))) for drawn in range(256))
            plane |= int.from_bytes(noise.translate(table), "little") & mask
        record += plane.to_bytes(PIXELS, "little")
    return record


def _masks(shape: str, texture: str, random: Random) -> tuple[Mask, Mask]:
    """Draw a random figure. Return the mask of its pixels and the mask of its light pixels."""
    in_figure, is_light = FIGURES[shape], TEXTURES[texture]
    radius = random.uniform(8, 12)
    middle_x, middle_y = (SIDE / 2 + random.uniform(-4, 4) for _ in range(2))
    phase_x, phase_y = (int(random.random() * PERIOD) for _ in range(2))
    figure, light = bytearray(PIXELS), bytearray(PIXELS)
    for pixel in range(PIXELS):
        y, x = divmod(pixel, SIDE)
        if in_figure(x - middle_x, y - middle_y, radius):
            figure[pixel] = 255
            light[pixel] = 255 * is_light(x + phase_x, y + phase_y)
    return int.from_bytes(figure, "little"), int.from_bytes(light, "little")
