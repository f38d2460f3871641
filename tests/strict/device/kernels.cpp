// Operators that torch calls by other names on devices of this kind than on the CPU.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include "tensors.h"

namespace strict {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

bool given(const Optional& tensor) { return tensor && tensor->defined(); }

template <class Change>
Optional mapped(const Optional& tensor, Change change) {
  return given(tensor) ? Optional(change(*tensor)) : std::nullopt;
}

Tensor convolution(const Tensor& input, const Tensor& weight, const Optional& bias, c10::IntArrayRef stride,
                   c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                   c10::IntArrayRef output_padding, int64_t groups) {
  const auto device = input.device().index();
  auto made = empty_as(device, at::convolution(form(input), form(weight), mapped(bias, form), stride, padding,
                                               dilation, transposed, output_padding, groups));
  auto inner = [](const Tensor& tensor) { return inside(tensor); };
  current_queue(device).launch(
      [=, to = inside(made), a = inside(input), b = inside(weight), c = mapped(bias, inner), s = stride.vec(),
       p = padding.vec(), d = dilation.vec(),
       o = output_padding.vec()] { to.copy_(at::convolution(a, b, c, s, p, d, transposed, o, groups)); });
  return made;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input,
                                                        const Tensor& weight, c10::IntArrayRef stride,
                                                        c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                                        bool transposed, c10::IntArrayRef output_padding,
                                                        int64_t groups, std::array<bool, 3> mask) {
  const auto device = input.device().index();
  const std::vector<int64_t> channels{grad.size(1)};
  std::array<Tensor, 3> made, to;
  if (mask[0]) made[0] = empty_as(device, input);
  if (mask[1]) made[1] = empty_as(device, weight);
  if (mask[2]) made[2] = empty_on(device, channels, {1}, weight.scalar_type());
  for (size_t i = 0; i < made.size(); ++i)
    if (mask[i]) to[i] = inside(made[i]);
  current_queue(device).launch([=, g = inside(grad), a = inside(input), b = inside(weight), s = stride.vec(),
                                p = padding.vec(), d = dilation.vec(), o = output_padding.vec()] {
    auto [x, w, bias] = at::convolution_backward(g, a, b, at::OptionalIntArrayRef(channels), s, p, d,
                                                 transposed, o, groups, mask);
    if (mask[0]) to[0].copy_(x);
    if (mask[1]) to[1].copy_(w);
    if (mask[2]) to[2].copy_(bias);
  });
  return {made[0], made[1], made[2]};
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  const auto kept = input.options().dtype(at::kBool);
  if (train && !*train) return {input.clone(), at::ones_like(input, kept)};
  auto mask = at::empty_like(input, kept).bernoulli_(1 - p);
  return {input * mask * (p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

int64_t attention(const Tensor&, const Tensor&, const Tensor&, const Optional&, double, bool,
                  std::optional<double>, bool) {
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

Tensor gates(const Tensor& input, const Optional& bias) { return given(bias) ? input + *bias : input; }

Tensor or_zeros(const Optional& grad, const Tensor& like) {
  return given(grad) ? *grad : at::zeros_like(like);
}

// i, f, g, o of a step; the workspace holds them after their functions.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& cell,
                                             const Optional& input_bias, const Optional& hidden_bias) {
  auto parts = (gates(input, input_bias) + gates(hidden, hidden_bias)).chunk(4, 1);
  auto i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(), o = parts[3].sigmoid();
  auto next = f * cell + i * g;
  return {o * next.tanh(), next, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const Optional& grad_hidden, const Optional& grad_cell,
                                                      const Tensor& cell, const Tensor& next,
                                                      const Tensor& workspace, bool bias) {
  auto parts = workspace.chunk(4, 1);
  auto &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  auto grad = or_zeros(grad_hidden, next), t = next.tanh();
  auto c = grad * o * (1 - t * t) + or_zeros(grad_cell, next);
  auto made =
      at::cat({c * g * i * (1 - i), c * cell * f * (1 - f), c * i * (1 - g * g), grad * t * o * (1 - o)}, 1);
  return {made, c * f, bias ? made.sum(0) : Tensor()};
}

// r, z, n of a step; the workspace holds them after their functions, the state, and the hidden part of n.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& state,
                                    const Optional& input_bias, const Optional& hidden_bias) {
  auto a = gates(input, input_bias).chunk(3, 1), b = gates(hidden, hidden_bias).chunk(3, 1);
  auto r = (a[0] + b[0]).sigmoid(), z = (a[1] + b[1]).sigmoid();
  auto n = (a[2] + r * b[2]).tanh();
  return {n + z * (state - n), at::cat({r, z, n, state, b[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad,
                                                                     const Tensor& workspace, bool bias) {
  auto parts = workspace.chunk(5, 1);
  auto &r = parts[0], &z = parts[1], &n = parts[2], &state = parts[3], &hidden = parts[4];
  auto by_n = grad * (1 - z) * (1 - n * n);
  auto by_z = grad * (state - n) * z * (1 - z);
  auto by_r = by_n * hidden * r * (1 - r);
  auto input = at::cat({by_r, by_z, by_n}, 1), from_hidden = at::cat({by_r, by_z, by_n * r}, 1);
  return {input, from_hidden, grad * z, bias ? input.sum(0) : Tensor(), bias ? from_hidden.sum(0) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("native_dropout", native_dropout);
  m.impl("_fused_sdp_choice", attention);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace
}  // namespace strict
