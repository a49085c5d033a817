"""Graphs of networks of today's sizes, written by their shapes alone."""

from launcher.sharding.expression import Expression
from launcher.sharding.graph import Graph, Leaf, Operator


class Builder:
    """Adds operators one after another."""

    def __init__(self):
        self.leaves, self.operators, self.shapes = [], [], {}

    def leaf(self, name, *shape, is_parameter=True):
        self.leaves.append(Leaf(name, shape, is_parameter))
        self.shapes[name] = shape
        return name

    def add(self, name, kind, inputs, indices, output, sizes, shape, flops=0, shared=()):  # noqa: PLR0917 - as a table
        used = {index for dims in indices for index in dims if index is not None}
        expression = Expression(
            tuple(map(tuple, indices)), tuple(output), {index: sizes[index] for index in sizes if index in used}, shared
        )
        self.operators.append(Operator(name, kind, tuple(inputs), tuple(shape), expression, flops))
        self.shapes[name] = tuple(shape)
        return name

    def same(self, name, kind, inputs, letters):
        """An operator that computes each element of its output from those at the same place; a letter "-" is never cut."""
        shape = self.shapes[inputs[0]]
        dims = [None if letter == "-" else letter for letter in letters]
        sizes = {letter: size for letter, size in zip(dims, shape, strict=True) if letter}
        indices = [dims[len(dims) - len(self.shapes[each]) :] for each in inputs]
        return self.add(name, kind, inputs, indices, dims, sizes, shape)

    def graph(self):
        return Graph(tuple(self.leaves), tuple(self.operators), self.operators[-1].name)


def resnet50(batch=256, classes=1000, size=224):
    """ResNet-50: 175 operators with the loss."""
    made = Builder()
    made.leaf("images", batch, 3, size, size, is_parameter=False)
    made.leaf("labels", batch, is_parameter=False)

    def convolution(name, x, channels, kernel, stride):
        _, inner, height, width = made.shapes[x]
        weight = made.leaf(f"{name}.weight", channels, inner, kernel, kernel)
        shape = (batch, channels, height // stride, width // stride)
        flops = 2 * batch * channels * inner * kernel**2 * shape[2] * shape[3]
        indices = [("n", "c", None, None), ("o", "c", None, None)]
        sizes = {"n": batch, "c": inner, "o": channels}
        return made.add(name, "conv2d", (x, weight), indices, ("n", "o", None, None), sizes, shape, flops)

    def norm(name, x):
        channels = made.shapes[x][1]
        inputs = (x, made.leaf(f"{name}.weight", channels), made.leaf(f"{name}.bias", channels))
        sizes = {"n": batch, "c": channels}
        dims = ("n", "c", None, None)
        return made.add(name, "batch_norm", inputs, [dims, "c", "c"], dims, sizes, made.shapes[x], shared=("n",))

    x = convolution("conv1", "images", 64, 7, 2)
    x = made.same("relu", "relu", (norm("bn1", x),), "nc--")
    sizes = {"n": batch, "c": 64}
    dims = ("n", "c", None, None)
    x = made.add("maxpool", "max_pool2d", (x,), [dims], dims, sizes, (batch, 64, size // 4, size // 4))
    for stage, (blocks, channels) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            name, before = f"layer{stage + 1}.{block}", x
            stride = 2 if stage and not block else 1
            for number, (width, kernel, step) in enumerate(
                ((channels, 1, 1), (channels, 3, stride), (4 * channels, 1, 1))
            ):
                x = norm(f"{name}.bn{number + 1}", convolution(f"{name}.conv{number + 1}", x, width, kernel, step))
                if number < 2:
                    x = made.same(f"{name}.relu{number + 1}", "relu", (x,), "nc--")
            if not block:
                before = norm(f"{name}.down1", convolution(f"{name}.down0", before, 4 * channels, 1, stride))
            x = made.same(f"{name}.relu", "relu", (made.same(f"{name}.add", "add", (x, before), "nc--"),), "nc--")
    x = made.add("avgpool", "mean", (x,), [dims], ("n", "c"), {"n": batch, "c": 2048}, (batch, 2048))
    weight = made.leaf("fc.weight", classes, 2048)
    sizes = {"n": batch, "c": 2048, "o": classes}
    flops = 2 * batch * classes * 2048
    x = made.add("fc", "matmul", (x, weight), ["nc", "oc"], "no", sizes, (batch, classes), flops)
    x = made.same("fc.bias_add", "add", (x, made.leaf("fc.bias", classes)), "no")
    made.add("loss", "cross_entropy", (x, "labels"), [("n", None), "n"], "", {"n": batch}, ())
    return made.graph()


def attention(layers=12, batch=32, length=512, width=1024, heads=16):
    """A network of encoder layers, with the norms after each sum, and a mean squared error."""
    made, size = Builder(), width // heads
    made.leaf("x", batch, length, width, is_parameter=False)
    x = made.leaf("label", batch, length, width, is_parameter=False)

    def linear(name, x, columns):
        inner = made.shapes[x][2]
        weight, bias = made.leaf(f"{name}.weight", columns, inner), made.leaf(f"{name}.bias", columns)
        sizes = {"b": batch, "s": length, "k": inner, "j": columns}
        shape = (batch, length, columns)
        flops = 2 * batch * length * columns * inner
        x = made.add(f"{name}.matmul", "matmul", (x, weight), ["bsk", "jk"], "bsj", sizes, shape, flops)
        return made.same(f"{name}.bias_add", "add", (x, bias), "bsj")

    def split(name, x):
        sizes = {"b": batch, "s": length, "h": heads}
        shape = (batch, length, heads, size)
        x = made.add(f"{name}.view", "reshape", (x,), ["bsh"], ("b", "s", "h", None), sizes, shape)
        shape = (batch, heads, length, size)
        sizes = {"b": batch, "s": length, "h": heads, "d": size}
        return made.add(f"{name}.permute", "permute", (x,), ["bshd"], "bhsd", sizes, shape)

    def norm(name, x):
        inputs = (x, made.leaf(f"{name}.weight", width), made.leaf(f"{name}.bias", width))
        dims = ("b", "s", None)
        sizes = {"b": batch, "s": length}
        return made.add(name, "layer_norm", inputs, [dims, (None,), (None,)], dims, sizes, (batch, length, width))

    x = "x"
    for layer in range(layers):
        name, before = f"layer{layer}", x
        q, k, v = (split(f"{name}.{each}", linear(f"{name}.{each}", x, width)) for each in "qkv")
        sizes = {"b": batch, "h": heads, "s": length, "t": length, "d": size}
        flops, shape = 2 * batch * length**2 * width, (batch, heads, length, length)
        x = made.add(f"{name}.scores", "matmul", (q, k), ["bhsd", "bhtd"], "bhst", sizes, shape, flops)
        x = made.same(f"{name}.scale", "scale", (x,), "bhst")
        x = made.same(f"{name}.softmax", "softmax", (x,), "bhs-")
        shape = (batch, heads, length, size)
        x = made.add(f"{name}.context", "matmul", (x, v), ["bhst", "bhtd"], "bhsd", sizes, shape, flops)
        shape = (batch, length, heads, size)
        x = made.add(f"{name}.permute", "permute", (x,), ["bhsd"], "bshd", sizes, shape)
        shape = (batch, length, width)
        x = made.add(f"{name}.view", "reshape", (x,), [("b", "s", "h", None)], "bsh", sizes, shape)
        x = norm(f"{name}.norm1", made.same(f"{name}.add1", "add", (linear(f"{name}.out", x, width), before), "bsj"))
        before = x
        x = made.same(f"{name}.gelu", "gelu", (linear(f"{name}.fc1", x, 4 * width),), "bsj")
        x = norm(f"{name}.norm2", made.same(f"{name}.add2", "add", (linear(f"{name}.fc2", x, width), before), "bsj"))
    x = made.same("sub", "sub", (x, "label"), "bsj")
    x = made.same("square", "square", (x,), "bsj")
    made.add("mean", "mean", (x,), ["bsj"], "", {"b": batch, "s": length, "j": width}, ())
    return made.graph()
