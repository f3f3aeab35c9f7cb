#pragma once

#include "engine/recipe/families.h"

/// The published convolutional models, and what is made of them; rows of families.cpp.
namespace dstrain {

inline constexpr ModelSizes kImages224 = {.image_size = 224, .channels = 3};
inline constexpr PublishedModel kBasicCnns[] = {
    {"cnn-basic",
     {},
     {.image_size = 32, .channels = 3},
     "3 convolutions of 32, 64 and 128 channels, for tests and first steps",
     true},
};
inline constexpr PublishedModel kResNets[] = {
    {"resnet18",
     {"timm/resnet18", "torchvision/resnet18"},
     kImages224,
     "ResNet of 18 layers, 11.7M parameters",
     true},
    {"resnet50",
     {"timm/resnet50", "torchvision/resnet50"},
     kImages224,
     "ResNet of 50 layers, 25.6M parameters",
     true},
};
inline constexpr PublishedModel kVggs[] = {
    {"vgg11", {"timm/vgg11", "torchvision/vgg11"}, kImages224, "VGG A, 133M parameters"},
    {"vgg13", {"timm/vgg13", "torchvision/vgg13"}, kImages224, "VGG B, 133M parameters"},
    {"vgg16", {"timm/vgg16", "torchvision/vgg16"}, kImages224, "VGG D, 138M parameters"},
    {"vgg19", {"timm/vgg19", "torchvision/vgg19"}, kImages224, "VGG E, 144M parameters"},
    {"vgg11-bn",
     {"timm/vgg11_bn", "torchvision/vgg11_bn"},
     kImages224,
     "vgg11 with batch norm",
     true},
    {"vgg13-bn",
     {"timm/vgg13_bn", "torchvision/vgg13_bn"},
     kImages224,
     "vgg13 with batch norm",
     true},
    {"vgg16-bn",
     {"timm/vgg16_bn", "torchvision/vgg16_bn"},
     kImages224,
     "vgg16 with batch norm",
     true},
    {"vgg19-bn",
     {"timm/vgg19_bn", "torchvision/vgg19_bn"},
     kImages224,
     "vgg19 with batch norm",
     true},
};
inline constexpr PublishedModel kMobileNetV2s[] = {
    {"mobilenet-v2",
     {"timm/mobilenetv2_100", "torchvision/mobilenet_v2"},
     kImages224,
     "MobileNetV2 of width 1, 3.5M parameters",
     true},
};

inline constexpr NormConstants kTorchvisionV3Norm = {.eps = 1e-3, .momentum = 0.01};
inline constexpr PublishedModel kMobileNetV3Larges[] = {
    {"mobilenet-v3-large",
     {"torchvision/mobilenet_v3_large"},
     kImages224,
     "MobileNetV3-Large, 5.5M parameters",
     true,
     kTorchvisionV3Norm,
     "mobilenetv3_large_100"},
    {"timm-mobilenet-v3-large",
     {"timm/mobilenetv3_large_100"},
     kImages224,
     "mobilenet-v3-large with timm's eps and momentum",
     true},
};
inline constexpr PublishedModel kMobileNetV3Smalls[] = {
    {"mobilenet-v3-small",
     {"torchvision/mobilenet_v3_small"},
     kImages224,
     "MobileNetV3-Small, 2.5M parameters",
     true,
     kTorchvisionV3Norm,
     "mobilenetv3_small_100"},
    {"timm-mobilenet-v3-small",
     {"timm/mobilenetv3_small_100"},
     kImages224,
     "mobilenet-v3-small with timm's eps and momentum",
     true},
};
constexpr ModelSizes images_of(std::int64_t pixels) {
  return {.image_size = pixels, .channels = 3};
}
inline constexpr NormConstants kTensorFlowNorm = {.eps = 1e-3};
inline constexpr PublishedModel kEfficientNets[] = {
    {"efficientnet-b0",
     {"timm/efficientnet_b0", "torchvision/efficientnet_b0"},
     images_of(224),
     "EfficientNet-B0, 5.3M parameters",
     true},
    {"efficientnet-b1",
     {"timm/efficientnet_b1", "torchvision/efficientnet_b1"},
     images_of(240),
     "EfficientNet-B1, 7.8M parameters",
     true},
    {"efficientnet-b2",
     {"timm/efficientnet_b2", "torchvision/efficientnet_b2"},
     images_of(260),
     "EfficientNet-B2, 9.1M parameters",
     true},
    {"efficientnet-b3",
     {"timm/efficientnet_b3", "torchvision/efficientnet_b3"},
     images_of(300),
     "EfficientNet-B3, 12.2M parameters",
     true},
    {"efficientnet-b4",
     {"timm/efficientnet_b4", "torchvision/efficientnet_b4"},
     images_of(380),
     "EfficientNet-B4, 19.3M parameters",
     true},
    {"tf-efficientnet-b0",
     {"timm/tf_efficientnet_b0"},
     images_of(224),
     "efficientnet-b0 with TensorFlow's padding and eps",
     true,
     kTensorFlowNorm},
    {"tf-efficientnet-b1",
     {"timm/tf_efficientnet_b1"},
     images_of(240),
     "efficientnet-b1 with TensorFlow's padding and eps",
     true,
     kTensorFlowNorm},
    {"tf-efficientnet-b2",
     {"timm/tf_efficientnet_b2"},
     images_of(260),
     "efficientnet-b2 with TensorFlow's padding and eps",
     true,
     kTensorFlowNorm},
    {"tf-efficientnet-b3",
     {"timm/tf_efficientnet_b3"},
     images_of(300),
     "efficientnet-b3 with TensorFlow's padding and eps",
     true,
     kTensorFlowNorm},
    {"tf-efficientnet-b4",
     {"timm/tf_efficientnet_b4"},
     images_of(380),
     "efficientnet-b4 with TensorFlow's padding and eps",
     true,
     kTensorFlowNorm},
};

inline constexpr PublishedModel kConvNexts[] = {
    {"convnext-tiny",
     {"timm/convnext_tiny", "torchvision/convnext_tiny"},
     kImages224,
     "ConvNeXt-Tiny, 28.6M parameters"},
    {"convnext-small",
     {"timm/convnext_small", "torchvision/convnext_small"},
     kImages224,
     "ConvNeXt-Small, 50.2M parameters"},
    {"convnext-base",
     {"timm/convnext_base", "torchvision/convnext_base"},
     kImages224,
     "ConvNeXt-Base, 88.6M parameters"},
    {"convnext-large",
     {"timm/convnext_large", "torchvision/convnext_large"},
     kImages224,
     "ConvNeXt-Large, 197.8M parameters"},
};

/// Their sizes are their members'.
inline constexpr PublishedModel kEnsembles[] = {
    {"ensemble", {}, kImages224, "the weighted average of the models in model.members", true},
};

inline constexpr PublishedModel kCnnLstms[] = {
    {"cnn-lstm",
     {},
     {.image_size = 224, .channels = 3, .width = 256, .layers = 1},
     "an LSTM over the frames of a clip, whose features are those of model.trunk",
     true},
};

}  // namespace dstrain
