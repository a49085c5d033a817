"""The ResNet-50 recipe for CIFAR-10 images: settings and checks before the start."""
