"""ResNet-50 on CIFAR-10's images: its settings, and what is checked before it starts."""
