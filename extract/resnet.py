"""Residual networks as detectron2 and bottom-up attention name their parameters.

Legend: B images, C channels, h w a map's height and width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import deform_conv2d

from extract.convolution import convolve, fast_kernel
from extract.detector_config import BLOCKS, ResNetConfig

_EPSILON = 1e-5  # of norms
_PRE_ACTIVATION_EPSILON = 2e-5  # of MXNet's


class FrozenNorm(nn.Module):
    """A batch norm with the statistics of training, (B, C, h, w) -> the same."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, epsilon: float = _EPSILON) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.epsilon
        )


class Conv(nn.Module):
    """A convolution without bias and the norm behind it, if any.

    Stride and dilation are given at each call: one set of weights serves detection, whose last
    stage may be dilated, and grids, whose last stage is not.
    """

    def __init__(
        self, inputs: int, outputs: int, size: int, norm: FrozenNorm | None, groups: int = 1
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, size, size))
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        self.register_parameter("bias", None)
        self.norm = norm
        self.groups = groups
        self.kernel: Tensor | None = None  # see `fast_kernel`

    def forward(
        self, x: Tensor, stride: int = 1, dilation: int = 1, offset: Tensor | None = None
    ) -> Tensor:
        """(B, C, h, w) -> (B, C', h', w'); an offset moves the samples of each cell."""
        if offset is None:
            y = self.convolved(x, stride, dilation)
        else:
            y = self._deformed(x, offset, stride, dilation)
        return y if self.norm is None else self.norm(y)

    def convolved(self, x: Tensor, stride: int, dilation: int) -> Tensor:
        """(B, C, h, w) -> (B, C', h', w') without the norm."""
        return convolve(x, self.weight, self.bias, stride, dilation, self.groups, self.kernel)

    def arrange(self) -> None:
        """Prepare the kernel that is fastest on a processor."""
        self.kernel = fast_kernel(self.weight, self.groups)

    def _deformed(self, x: Tensor, offset: Tensor, stride: int, dilation: int) -> Tensor:
        """In float32, the only precision that the operator has everywhere."""
        padding = dilation * (self.weight.shape[-1] // 2)
        bias = None if self.bias is None else self.bias.float()
        y = deform_conv2d(
            x.float(), offset.float(), self.weight.float(), bias, stride, padding, dilation
        )
        return y.to(x.dtype)

    def fold(self) -> None:
        """Merge the norm behind this convolution into it."""
        if self.norm is not None:
            self.absorb(self.norm)
            self.norm = None

    @torch.no_grad()
    def absorb(self, norm: FrozenNorm) -> None:
        """Do what `norm` would do to the output, by weight and bias."""
        scale = norm.weight.double() * (norm.running_var.double() + norm.epsilon).rsqrt()  # (C',)
        shift = norm.bias.double() - norm.running_mean.double() * scale  # (C',)
        self.weight.copy_(self.weight.double() * scale[:, None, None, None])
        self.bias = nn.Parameter(shift.to(self.weight.dtype), requires_grad=False)


class PreActivatedConv(Conv):
    """A convolution with its norm and the activation in front."""

    def forward(
        self, x: Tensor, stride: int = 1, dilation: int = 1, offset: Tensor | None = None
    ) -> Tensor:
        x = F.relu_(x if self.norm is None else self.norm(x))
        return self.convolved(x, stride, dilation)


class PlainConv(nn.Conv2d):
    """A 1x1 or 3x3 convolution with bias that keeps a map's size."""

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__(inputs, outputs, size, padding=size // 2)
        self.kernel: Tensor | None = None  # see `fast_kernel`

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C', h, w)."""
        return convolve(x, self.weight, self.bias, kernel=self.kernel)

    def arrange(self) -> None:
        """Prepare the kernel that is fastest on a processor."""
        self.kernel = fast_kernel(self.weight, 1)


class Offsets(nn.Module):
    """The 3x3 convolution that says where a deformable one samples: 2 numbers for 9 places."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(18, channels, 3, 3))
        self.bias = nn.Parameter(torch.zeros(18))

    def forward(self, x: Tensor, stride: int, dilation: int) -> Tensor:
        """(B, C, h, w) -> (B, 18, h', w')."""
        return F.conv2d(x, self.weight, self.bias, stride, dilation, dilation)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, activation last."""

    def __init__(self, config: ResNetConfig, inputs: int, inner: int, outputs: int, deform: bool):
        super().__init__()
        self.stride_in_1x1 = config.stride_in_1x1
        self.shortcut = Conv(inputs, outputs, 1, FrozenNorm(outputs)) if inputs != outputs else None
        self.conv1 = Conv(inputs, inner, 1, FrozenNorm(inner))
        self.conv2_offset = Offsets(inner) if deform else None
        self.conv2 = Conv(inner, inner, 3, FrozenNorm(inner), config.groups)
        self.conv3 = Conv(inner, outputs, 1, FrozenNorm(outputs))

    def forward(self, x: Tensor, stride: int, dilation: int) -> Tensor:
        """(B, C, h, w) -> (B, C', h / stride, w / stride)."""
        first, second = (stride, 1) if self.stride_in_1x1 else (1, stride)
        y = F.relu_(self.conv1(x, first))
        offset = None if self.conv2_offset is None else self.conv2_offset(y, second, dilation)
        y = F.relu_(self.conv2(y, second, dilation, offset))
        y = self.conv3(y)
        y += x if self.shortcut is None else self.shortcut(x, stride)
        return F.relu_(y)

    def fold(self) -> None:
        """Merge norms into the convolutions in front of them."""
        for conv in (self.shortcut, self.conv1, self.conv2, self.conv3):
            if conv is not None:
                conv.fold()


class PreActivationBottleneck(nn.Module):
    """A block of MXNet's kind: norm and activation come first, nothing follows the sum."""

    def __init__(self, config: ResNetConfig, inputs: int, inner: int, outputs: int):
        super().__init__()
        epsilon = _PRE_ACTIVATION_EPSILON
        self.stride_in_1x1 = config.stride_in_1x1
        self.norm = FrozenNorm(inputs, epsilon)
        self.shortcut = Conv(inputs, outputs, 1, None) if inputs != outputs else None
        self.conv1 = Conv(inputs, inner, 1, None)
        self.conv2 = PreActivatedConv(inner, inner, 3, FrozenNorm(inner, epsilon), config.groups)
        self.conv3 = PreActivatedConv(inner, outputs, 1, FrozenNorm(inner, epsilon))

    def forward(self, x: Tensor, stride: int, dilation: int, activated: bool = False) -> Tensor:
        """(B, C, h, w) -> (B, C', h / stride, w / stride); `activated` input has had its norm."""
        first, second = (stride, 1) if self.stride_in_1x1 else (1, stride)
        before = x if activated else F.relu_(self.norm(x))
        y = self.conv3(self.conv2(self.conv1(before, first), second, dilation))
        y += x if self.shortcut is None else self.shortcut(before, stride)
        return y

    def fold(self) -> None:
        """Merge the norms of conv2 and conv3 into the convolutions in front of them."""
        for conv, behind in ((self.conv1, self.conv2), (self.conv2, self.conv3)):
            if behind.norm is not None:
                conv.absorb(behind.norm)
                behind.norm = None


class Stage(nn.Sequential):
    """The blocks of one stage, named 0, 1, ..."""

    def __init__(self, config: ResNetConfig, level: int) -> None:
        """`level` is 2 to 5."""
        outputs = config.res2_channels * 2 ** (level - 2)
        inputs = config.stem_channels if level == 2 else outputs // 2
        inner = config.groups * config.group_width * 2 ** (level - 2)
        deform = config.deform[level - 2]
        blocks: list[nn.Module] = []
        for number in range(BLOCKS[config.depth][level - 2]):
            into = inputs if number == 0 else outputs
            if config.pre_activation:
                blocks.append(PreActivationBottleneck(config, into, inner, outputs))
            else:
                blocks.append(Bottleneck(config, into, inner, outputs, deform))
        super().__init__(*blocks)
        self.stride = 1 if level == 2 else 2

    def forward(
        self, x: Tensor, dilation: int = 1, activated: bool = False, thinned: bool = False
    ) -> Tensor:
        """(B, C, h, w) -> (B, C', h', w'): half as high and wide behind res2, unless dilated.

        `thinned` input holds only the cells that a stride would visit.
        """
        first, *rest = self
        stride = self.stride if dilation == 1 and not thinned else 1
        x = first(x, stride, dilation, True) if activated else first(x, stride, dilation)
        for block in rest:
            x = block(x, 1, dilation)
        return x

    def fold(self) -> None:
        """Merge norms into convolutions."""
        for block in self:
            block.fold()  # type: ignore[operator]


class Stem(nn.Module):
    """7x7 convolution and 3x3 pooling, (B, 3, h, w) -> (B, C, h / 4, w / 4)."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        epsilon = _PRE_ACTIVATION_EPSILON if config.pre_activation else _EPSILON
        self.norm = FrozenNorm(3, epsilon) if config.pre_activation else None
        norm = FrozenNorm(config.stem_channels, epsilon)
        self.conv1 = Conv(3, config.stem_channels, 7, norm)
        self.padding = 0 if config.caffe_pool else 1

    def forward(self, images: Tensor) -> Tensor:
        x = images if self.norm is None else self.norm(images)
        x = F.relu_(self.conv1(x, 2))
        return F.max_pool2d(x, 3, 2, self.padding, ceil_mode=not self.padding)

    def fold(self) -> None:
        """Merge the norm of the convolution; that of the images stands before its zero padding."""
        self.conv1.fold()


class ResNet(nn.Module):
    """Stem and stages; gives the maps that are asked for."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config)
        self.levels = range(2, int(config.last[3:]) + 1)
        for level in self.levels:
            self.add_module(f"res{level}", Stage(config, level))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) -> `res2` ... `last`, (B, C, H / stride, W / stride) each."""
        x, maps = self.stem(images), {}
        for level in self.levels:
            dilation = self.config.res5_dilation if level == 5 else 1
            x = self.get_submodule(f"res{level}")(x, dilation)
            maps[f"res{level}"] = x
        return maps

    def fold(self) -> None:
        """Merge norms into convolutions."""
        self.stem.fold()
        for level in self.levels:
            self.get_submodule(f"res{level}").fold()  # type: ignore[operator]
