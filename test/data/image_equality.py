"""Resized images have the pixels of Pillow and torchvision bit for bit, and operations those of torchvision.transforms.v2 on uint8."""
import math
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    from PIL import Image
    from torchvision.transforms import InterpolationMode, v2
    from torchvision.transforms.v2 import functional as F
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77)

FILTERS = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}
OPERATIONS = ["Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness",
              "Posterize", "Solarize", "AutoContrast", "Equalize"]
GEOMETRIC = OPERATIONS[1:6]
draw = numpy.random.default_rng(0)
probe = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def ask(words, shape, pixels=b"", dtype=numpy.uint8):
    probe.stdin.write((" ".join(str(word) for word in words) + "\n").encode() + pixels)
    probe.stdin.flush()
    count = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
    answer = probe.stdout.read(count)
    assert len(answer) == count, (words, len(answer), count)
    return numpy.frombuffer(answer, dtype).reshape(shape)


def picture(width, height, channels=3):
    """Smooth colours with noise, so that neither flat nor only noisy places are tested."""
    coarse = draw.integers(0, 256, (max(1, height // 9), max(1, width // 7), 3), dtype=numpy.uint8)
    smooth = numpy.asarray(Image.fromarray(coarse).resize((width, height), Image.BICUBIC)).astype(int)
    noisy = numpy.clip(smooth + draw.integers(-25, 26, smooth.shape), 0, 255).astype(numpy.uint8)
    return noisy[..., :channels]


def check_evaluation(scratch):
    """200 sizes: the shorter side to `side`, the middle `size`."""
    for i in range(200):
        width, height = int(draw.integers(1, 420)), int(draw.integers(1, 420))
        if i % 20 == 0:
            width = int(draw.integers(900, 1400))
        size = int(draw.integers(1, 250))
        side = size + int(draw.choice([0, 1, 3, 5, 32, 47]))
        name = str(draw.choice(list(FILTERS)))
        path = scratch / f"{i}.{'jpg' if i % 4 == 0 else 'png'}"
        Image.fromarray(picture(width, height)).save(path, **({"quality": 92, "subsampling": i // 4 % 3} if i % 4 == 0 else {}))
        image = Image.open(path).convert("RGB")
        expected = F.center_crop(F.resize(image, [side], FILTERS[name], antialias=True), [size, size])
        got = ask(["evaluate", path, side, size, name], (size, size, 3))
        assert (got == numpy.asarray(expected)).all(), (width, height, side, size, name)
    print("200 sizes: resize and centre crop equal torchvision's")


def check_webp(scratch):
    """Lossy and lossless, with and without transparency: the pixels of Pillow."""
    for i in range(40):
        width, height = int(draw.integers(1, 300)), int(draw.integers(1, 300))
        pixels = picture(width, height)
        if i % 4 > 1:
            pixels = numpy.dstack([pixels, draw.integers(0, 256, (height, width), dtype=numpy.uint8)])
        path = scratch / f"{i}.webp"
        Image.fromarray(pixels).save(path, lossless=i % 2 == 1, quality=80, exact=i % 8 > 3)
        expected = numpy.asarray(Image.open(path).convert("RGB"))
        if i % 2 == 1 and pixels.shape[2] == 3:
            assert (expected == pixels).all()
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        got = ask(["window", path, left, top, side, side, side, "bilinear"], (side, side, 3))
        assert (got == expected[top:top + side, left:left + side]).all(), (i, width, height)
    print("40 WebP files: equal Pillow's pixels")


def check_windows(scratch):
    """What random_resized_crop cuts: crop, then resize."""
    for i in range(60):
        width, height = int(draw.integers(2, 300)), int(draw.integers(2, 300))
        w, h = int(draw.integers(1, width + 1)), int(draw.integers(1, height + 1))
        left, top = int(draw.integers(0, width - w + 1)), int(draw.integers(0, height - h + 1))
        size, name = int(draw.integers(1, 200)), str(draw.choice(list(FILTERS)))
        path = scratch / f"window{i}.{'jpg' if i % 2 else 'png'}"
        Image.fromarray(picture(width, height)).save(path, **({"quality": 92, "subsampling": i // 2 % 3, "progressive": i % 3 == 0} if i % 2 else {}))
        expected = F.resized_crop(Image.open(path).convert("RGB"), top, left, h, w, [size, size], FILTERS[name], antialias=True)
        got = ask(["window", path, left, top, w, h, size, name], (size, size, 3))
        assert (got == numpy.asarray(expected)).all(), (width, height, left, top, w, h, size, name)
    print("60 windows: equal torchvision's resized_crop")


def tables(width, height):
    """Strengths as torchvision has them: space, operation, level."""
    found = numpy.zeros((2, len(OPERATIONS), 31))
    for space, transform in enumerate((v2.RandAugment, v2.TrivialAugmentWide)):
        assert list(transform._AUGMENTATION_SPACE) == OPERATIONS
        for number, (values, signed) in enumerate(transform._AUGMENTATION_SPACE.values()):
            magnitudes = values(31, height, width)
            if magnitudes is not None:
                found[space, number] = magnitudes.double().numpy()
            assert signed == (1 <= number <= 9)
    return found


def check_magnitudes():
    for width, height in ((224, 224), (32, 32), (300, 171)):
        expected = tables(width, height)
        got = ask(["magnitudes", width, height], expected.shape, dtype=numpy.float64)
        for number, name in enumerate(OPERATIONS):
            # Solarize compares with whole numbers and the number of bits is one: these must be equal. The others are rounded to
            # single precision in an order that depends on the vector unit.
            allowed = 0 if name in ("Posterize",) else 2.0 ** -23 * numpy.abs(expected[:, number]).max()
            assert (numpy.abs(got[:, number] - expected[:, number]) <= allowed).all(), (name, got[:, number], expected[:, number])
    print("strengths equal torchvision's")


def source_places(name, magnitude, width, height):
    """Where each pixel comes from, in double precision."""
    x, y = numpy.meshgrid(numpy.arange(width) - (width - 1) / 2, numpy.arange(height) - (height - 1) / 2)
    if name == "ShearX":
        x = x + magnitude * (y + height / 2)
    elif name == "ShearY":
        y = y + magnitude * (x + width / 2)
    elif name == "TranslateX":
        x = x - int(magnitude)
    elif name == "TranslateY":
        y = y - int(magnitude)
    else:
        angle = -math.radians(magnitude)
        x, y = math.cos(angle) * x + math.sin(angle) * y, -math.sin(angle) * x + math.cos(angle) * y
    return x + (width - 1) / 2, y + (height - 1) / 2


def check_operations():
    apply = v2.RandAugment()
    compared = left_out = 0
    for width, height, channels in ((64, 64, 3), (37, 50, 3), (32, 32, 1), (3, 2, 3), (224, 224, 3)):
        strengths = tables(width, height)
        images = [picture(width, height, channels), numpy.full((height, width, channels), 130, numpy.uint8),
                  draw.integers(0, 256, (height, width, channels), dtype=numpy.uint8)]
        for number, name in enumerate(OPERATIONS):
            for space in range(2):
                for level in (0, 1, 9, 15, 20, 30):
                    magnitude = float(strengths[space, number, level])
                    if name == "Rotate" and magnitude == 90 and (width - height) % 2:
                        continue  # every pixel comes from half way between two
                    for sign in ((1, -1) if 1 <= number <= 9 else (1,)):
                        for image in images[:1] if width > 64 else images:
                            tensor = torch.from_numpy(image.copy()).permute(2, 0, 1).contiguous()
                            expected = apply._apply_image_or_video_transform(tensor, name, sign * magnitude, InterpolationMode.NEAREST, apply._fill)
                            expected = expected.permute(1, 2, 0).numpy()
                            got = ask(["operate", number, repr(sign * magnitude), width, height, channels], image.shape, image.tobytes())
                            apart = (got != expected).any(axis=2)
                            if name in GEOMETRIC:
                                # torchvision's places are single precision: of those half way between two pixels either may be right.
                                places = source_places(name, sign * magnitude, width, height)
                                near = numpy.zeros_like(apart)
                                for place in places:
                                    near |= numpy.abs(place - numpy.floor(place) - 0.5) < 1e-6 * 64 * max(width, height) / 2
                                left_out += int((near & apart).sum())
                                apart &= ~near
                            compared += apart.size
                            assert not apart.any(), (name, sign * magnitude, image.shape, int(apart.sum()))
    assert left_out < compared / 500, (left_out, compared)
    print(f"operations: {compared} pixels equal torchvision's, {left_out} half way between two")


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    torch.set_num_threads(1)
    check_evaluation(scratch)
    check_webp(scratch)
    check_windows(scratch)
    check_magnitudes()
    check_operations()
    probe.stdin.close()
    assert probe.wait() == 0
