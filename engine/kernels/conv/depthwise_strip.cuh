#pragma once

#include <type_traits>

#include "engine/kernels/conv/depthwise_tiles.h"
#include "engine/kernels/conv/pair.cuh"

/// Depthwise convolution, the work of one thread: two channels of a strip. Each row of the input is
/// read once and added to the output rows that it belongs to. The same code on GPU and host, so
/// that its indices are tested without a GPU.
namespace dstrain::kernels::cuda {

template <typename T>
inline constexpr bool kExactType = std::is_same_v<T, float>;

/// Two numbers of a vector per channel; `otherwise` where there is none.
DSTRAIN_HOST_DEVICE void read_pair(const float* from, int pair, float otherwise, float (&out)[2]) {
  out[0] = from == nullptr ? otherwise : from[2 * pair];
  out[1] = from == nullptr ? otherwise : from[2 * pair + 1];
}

/// The next pixel. The compiler shall step from column to column: were it to see the multiples of
/// the step, it would keep an address for each column in registers.
template <typename Pixel>
DSTRAIN_HOST_DEVICE void step_to_next(Pixel*& pixel, int pairs) {
  pixel += pairs;
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(pixel));
#endif
}

/// Some neighbouring columns of an image, of which some may lie outside.
template <typename T, int N>
struct ColumnStrip {
  const Pair<T>* image;  ///< at the pair of channels of the first row and column
  int pairs;             ///< of a pixel
  int height, width, first;
  bool inside;  ///< all columns are

  DSTRAIN_HOST_DEVICE ColumnStrip(const void* images, std::int64_t sample, int rows, int columns,
                                  std::int64_t channels, int pair, int first_column)
      : image(static_cast<const Pair<T>*>(images) + sample * rows * columns * (channels / 2) +
              pair),
        pairs(static_cast<int>(channels / 2)),
        height(rows),
        width(columns),
        first(first_column),
        inside(first_column >= 0 && first_column + N <= columns) {
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+l"(image));  // kept, not computed again for each row
#endif
  }

  DSTRAIN_HOST_DEVICE bool has_row(int y) const { return y >= 0 && y < height; }
  DSTRAIN_HOST_DEVICE bool has_column(int i) const {
    return inside || (first + i >= 0 && first + i < width);
  }
  DSTRAIN_HOST_DEVICE int at(int y, int i) const { return (y * width + (first + i)) * pairs; }
  /// Zero outside.
  DSTRAIN_HOST_DEVICE void read(int y, Pair<T> (&out)[N]) const {
    if (!has_row(y)) {
#pragma unroll
      for (int i = 0; i < N; ++i) out[i] = Pair<T>::zero();
    } else if (inside) {
      const Pair<T>* pixel = image + at(y, 0);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        out[i] = *pixel;
        step_to_next(pixel, pairs);
      }
    } else {
      const Pair<T>* pixel = image + at(y, 0);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        out[i] = has_column(i) ? *pixel : Pair<T>::zero();
        step_to_next(pixel, pairs);
      }
    }
  }
  /// Zero where columns lie outside.
  DSTRAIN_HOST_DEVICE void clear_outside(Pair<T> (&row)[N]) const {
    if (inside) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (!has_column(i)) row[i] = Pair<T>::zero();
    }
  }
};

/// What the sums of a pair of channels are made about: the middle of the first output.
template <typename T>
DSTRAIN_HOST_DEVICE void depthwise_centre(const Depthwise& a, int pair, float (&out)[2]) {
  const DepthwiseShape& s = a.shape;
  const auto row = static_cast<int>(s.out_height / 2) * s.stride - s.before,
             column = static_cast<int>(s.out_width / 2) * s.stride - s.before;
  const T* taps = static_cast<const T*>(a.weight) + std::int64_t{2} * pair * s.kernel * s.kernel;
  float scale[2], shift[2];
  read_pair(a.scale, pair, 1, scale);
  read_pair(a.shift, pair, 0, shift);
  out[0] = out[1] = 0;
  for (int tap = 0; tap < s.kernel * s.kernel; ++tap) {
    const int y = row + tap / s.kernel, x = column + tap % s.kernel;
    if (y < 0 || y >= s.height || x < 0 || x >= s.width) continue;
    Pair<T> seen = static_cast<const Pair<T>*>(a.x)[(y * s.width + x) * (s.channels / 2) + pair];
    if (a.scale != nullptr) {
      activation_math::with_activation<kExactType<T>>(a.activation, [&](const auto& activation) {
        seen = Pair<T>::of(activation.value(seen.first() * scale[0] + shift[0]),
                           activation.value(seen.second() * scale[1] + shift[1]));
      });
    }
    out[0] += scalar(taps + tap) * seen.first();
    out[1] += scalar(taps + s.kernel * s.kernel + tap) * seen.second();
  }
}

/// Forward: a strip of Q columns of the output.
template <typename T, int K, int S, int Q>
struct DepthwiseStrip {
  static constexpr int kIn = (Q - 1) * S + K;    ///< columns of the input
  static constexpr int kLive = (K + S - 1) / S;  ///< output rows that an input row may belong to
  static constexpr int kSums = 2;
  static constexpr int kBlocks = depthwise_resident(sizeof(T) == 4, K, S, Q);

  float weight[K * K][2];
  float scale[2], shift[2], centre[2];
  float sum[kSums][2] = {};
  int pair;

  DSTRAIN_HOST_DEVICE DepthwiseStrip(const Depthwise& a, int own_pair) : pair(own_pair) {
    read_pair(a.scale, pair, 1, scale);
    read_pair(a.shift, pair, 0, shift);
    read_pair(a.centre, pair, 0, centre);
    const T* taps = static_cast<const T*>(a.weight) + std::int64_t{2} * pair * K * K;
#pragma unroll
    for (int tap = 0; tap < K * K; ++tap) {
      weight[tap][0] = scalar(taps + tap);
      weight[tap][1] = scalar(taps + K * K + tap);
    }
  }

  /// What the convolution sees of a row.
  DSTRAIN_HOST_DEVICE void activate(const Depthwise& a, const ColumnStrip<T, kIn>& in,
                                    Pair<T> (&row)[kIn]) const {
    if (a.scale == nullptr) return;
    activation_math::with_activation<kExactType<T>>(a.activation, [&](const auto& activation) {
#pragma unroll
      for (int i = 0; i < kIn; ++i) {
        row[i] = Pair<T>::of(activation.value(row[i].first() * scale[0] + shift[0]),
                             activation.value(row[i].second() * scale[1] + shift[1]));
      }
    });
    in.clear_outside(row);
  }

  /// Writes an output and adds it to the sums.
  DSTRAIN_HOST_DEVICE void put(Pair<T>*& to, int pairs, const float (&value)[2]) {
    const Pair<T> rounded = Pair<T>::of(value[0], value[1]);
    *to = rounded;
    step_to_next(to, pairs);
    const float d[2] = {rounded.first() - centre[0], rounded.second() - centre[1]};
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      sum[0][c] += d[c];
      sum[1][c] += d[c] * d[c];
    }
  }

  DSTRAIN_HOST_DEVICE void emit(const ColumnStrip<T, Q>& out, int y, const float (&row)[Q][2]) {
    Pair<T>* to = const_cast<Pair<T>*>(out.image) + out.at(y, 0);
    if (out.inside) {
#pragma unroll
      for (int q = 0; q < Q; ++q) put(to, out.pairs, row[q]);
    } else {
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        if (out.has_column(q)) put(to, out.pairs, row[q]);
      }
    }
  }

  /// The caller takes the sums before it comes to a filler.
  DSTRAIN_HOST_DEVICE void walk(const Depthwise& a, const DepthwiseItem& item, bool) {
    const DepthwiseShape& s = a.shape;
    const ColumnStrip<T, kIn> in(a.x, item.sample, static_cast<int>(s.height),
                                 static_cast<int>(s.width), s.channels, pair,
                                 item.first_column * S - s.before);
    const ColumnStrip<T, Q> out(a.y, item.sample, static_cast<int>(s.out_height),
                                static_cast<int>(s.out_width), s.channels, pair, item.first_column);
    const int rows = item.end_row - item.first_row, first = item.first_row * S - s.before;
    const int end = first + (rows - 1) * S + K;  // input rows of this segment
    float live[kLive][Q][2] = {};                // live[d] is output row t - d
    Pair<T> next[kIn];
    in.read(first, next);
#pragma unroll(kLive)
    for (int t = 0; t < rows + kLive - 1; ++t) {
#pragma unroll
      for (int r = 0; r < S; ++r) {
        const int y = first + t * S + r;
        Pair<T> row[kIn];
#pragma unroll
        for (int i = 0; i < kIn; ++i) row[i] = next[i];
        if (y + 1 < end) in.read(y + 1, next);
        if (y >= end || !in.has_row(y)) continue;
        activate(a, in, row);
#pragma unroll
        for (int i = 0; i < kIn; ++i) {
          const float x[2] = {row[i].first(), row[i].second()};
#pragma unroll
          for (int d = 0; d < kLive; ++d) {
            const int ky = r + d * S;
            if (ky >= K) continue;
#pragma unroll
            for (int q = 0; q < Q; ++q) {
              const int kx = i - q * S;
              if (kx < 0 || kx >= K) continue;
              live[d][q][0] += weight[ky * K + kx][0] * x[0];
              live[d][q][1] += weight[ky * K + kx][1] * x[1];
            }
          }
        }
      }
      const int done = t - (kLive - 1);
      if (done >= 0) emit(out, item.first_row + done, live[kLive - 1]);
#pragma unroll
      for (int d = kLive - 1; d >= 0; --d) {
#pragma unroll
        for (int q = 0; q < Q; ++q) {
          live[d][q][0] = d > 0 ? live[d > 0 ? d - 1 : 0][q][0] : 0;
          live[d][q][1] = d > 0 ? live[d > 0 ? d - 1 : 0][q][1] : 0;
        }
      }
    }
  }
};

/// Backward: a strip of S * Q columns of the input. The rows of the output's gradient that belong
/// to a row of the input stay in registers. Left: before % S, so that the taps of a column are
/// constants.
template <typename T, int K, int S, int Left, int Q>
struct DepthwiseBackwardStrip {
  static constexpr int kIn = S * Q;
  /// Columns of the gradient, from kFirst on in relation to the one that belongs to column 0.
  static constexpr int kFirst = -((K - 1 - Left) / S), kLast = (Left + kIn - 1) / S;
  static constexpr int kOut = kLast - kFirst + 1;
  static constexpr int kLive = (K + S - 1) / S;
  static constexpr int kTaps = K * K;
  static constexpr int kSums = 2 + kTaps;  ///< of dx, of dx (x - mean), and the weight's gradient
  static constexpr int kBlocks = depthwise_backward_resident(sizeof(T) == 4, K, S, kIn);

  Pair<T> weight[K * K];
  float mean[2], scale[2], shift[2];
  float next_mean[2], next_scale[2], next_shift[2], slope[2], offset[2];
  float gate[2], grad_mean[2];
  float sum[kSums][2] = {};
  int pair;

  DSTRAIN_HOST_DEVICE DepthwiseBackwardStrip(const DepthwiseBackward& a, int own_pair)
      : pair(own_pair) {
    read_pair(a.mean, pair, 0, mean);
    read_pair(a.scale, pair, 1, scale);
    read_pair(a.shift, pair, 0, shift);
    const FollowingNorm& f = a.following;
    read_pair(f.mean, pair, 0, next_mean);
    read_pair(f.scale, pair, 1, next_scale);
    read_pair(f.shift, pair, 0, next_shift);
    read_pair(f.slope, pair, 0, slope);
    read_pair(f.offset, pair, 0, offset);
    const T* taps = static_cast<const T*>(a.weight) + std::int64_t{2} * pair * K * K;
#pragma unroll
    for (int tap = 0; tap < K * K; ++tap)
      weight[tap] = Pair<T>::of(scalar(taps + tap), scalar(taps + K * K + tap));
  }

  DSTRAIN_HOST_DEVICE void read_gate(const DepthwiseBackward& a, std::int64_t sample) {
    const FollowingNorm& f = a.following;
    gate[0] = gate[1] = 1;
    grad_mean[0] = grad_mean[1] = 0;
    if (f.gate == nullptr) return;
    const std::int64_t at = sample * a.shape.channels + 2 * pair;
    const float share = 1.0f / static_cast<float>(a.shape.out_height * a.shape.out_width);
    gate[0] = f.gate[at], gate[1] = f.gate[at + 1];
    grad_mean[0] = f.grad_mean[at] * share, grad_mean[1] = f.grad_mean[at + 1] * share;
  }

  /// The gradient of the convolution's output from what follows.
  DSTRAIN_HOST_DEVICE void form(const DepthwiseBackward& a, const ColumnStrip<T, kOut>& out,
                                const Pair<T> (&grad)[kOut], const Pair<T> (&y)[kOut],
                                Pair<T> (&row)[kOut]) const {
    if (a.following.y == nullptr) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) row[i] = grad[i];
      return;
    }
    const auto one = [&](const auto& activation, float g, float x, int c) {
      return next_scale[c] * activation.through(x * next_scale[c] + next_shift[c], g) +
             ((x - next_mean[c]) * slope[c] + offset[c]);
    };
    activation_math::with_activation<kExactType<T>>(
        a.following.activation, [&](const auto& activation) {
          if (a.following.gate == nullptr) {
#pragma unroll
            for (int i = 0; i < kOut; ++i) {
              row[i] = Pair<T>::of(one(activation, grad[i].first(), y[i].first(), 0),
                                   one(activation, grad[i].second(), y[i].second(), 1));
            }
          } else {
#pragma unroll
            for (int i = 0; i < kOut; ++i) {
              const float g[2] = {grad[i].first() * gate[0] + grad_mean[0],
                                  grad[i].second() * gate[1] + grad_mean[1]};
              row[i] = Pair<T>::of(one(activation, g[0], y[i].first(), 0),
                                   one(activation, g[1], y[i].second(), 1));
            }
          }
        });
    out.clear_outside(row);
  }

  /// A row of the input: what the convolution saw, and the derivative there.
  DSTRAIN_HOST_DEVICE void activate(const DepthwiseBackward& a, const Pair<T> (&row)[kIn],
                                    float (&x)[kIn][2], float (&derivative)[kIn][2]) const {
    if (a.scale == nullptr) {
#pragma unroll
      for (int j = 0; j < kIn; ++j) {
        x[j][0] = row[j].first(), x[j][1] = row[j].second();
        derivative[j][0] = derivative[j][1] = 1;
      }
      return;
    }
    activation_math::with_activation<kExactType<T>>(a.activation, [&](const auto& activation) {
#pragma unroll
      for (int j = 0; j < kIn; ++j) {
        const auto first = activation.both(row[j].first() * scale[0] + shift[0]),
                   second = activation.both(row[j].second() * scale[1] + shift[1]);
        const Pair<T> rounded = Pair<T>::of(first.y, second.y);
        x[j][0] = rounded.first(), x[j][1] = rounded.second();
        derivative[j][0] = first.slope, derivative[j][1] = second.slope;
      }
    });
  }

  /// Row y of the input, r of the S rows of a step.
  template <int r>
  DSTRAIN_HOST_DEVICE void finish_row(const DepthwiseBackward& a, const ColumnStrip<T, kIn>& in,
                                      int y, const Pair<T> (&row)[kIn],
                                      const Pair<T> (&live)[kLive][kOut]) {
    float x[kIn][2], derivative[kIn][2], dx[kIn][2] = {};
    activate(a, row, x, derivative);
    if (!in.inside) {
#pragma unroll
      for (int j = 0; j < kIn; ++j) {
        if (!in.has_column(j)) x[j][0] = x[j][1] = 0;
      }
    }
#pragma unroll
    for (int d = 0; d < kLive; ++d) {
      const int ky = r + d * S;
      if (ky >= K) continue;
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        const float g[2] = {live[d][i].first(), live[d][i].second()};
#pragma unroll
        for (int j = 0; j < kIn; ++j) {
          const int kx = Left + j - S * (i + kFirst);
          if (kx < 0 || kx >= K) continue;
          const int tap = ky * K + kx;
          dx[j][0] += weight[tap].first() * g[0];
          dx[j][1] += weight[tap].second() * g[1];
          sum[2 + tap][0] += x[j][0] * g[0];
          sum[2 + tap][1] += x[j][1] * g[1];
        }
      }
    }
    Pair<T>* to = static_cast<Pair<T>*>(a.grad_x) + (in.image - static_cast<const Pair<T>*>(a.x)) +
                  in.at(y, 0);
    const auto put = [&](int j) {
      const Pair<T> rounded = Pair<T>::of(dx[j][0] * derivative[j][0], dx[j][1] * derivative[j][1]);
      *to = rounded;
      step_to_next(to, in.pairs);
      sum[0][0] += rounded.first();
      sum[0][1] += rounded.second();
      sum[1][0] += rounded.first() * (row[j].first() - mean[0]);
      sum[1][1] += rounded.second() * (row[j].second() - mean[1]);
    };
    if (in.inside) {
#pragma unroll
      for (int j = 0; j < kIn; ++j) put(j);
    } else {
#pragma unroll
      for (int j = 0; j < kIn; ++j) {
        if (in.has_column(j)) put(j);
      }
    }
  }

  DSTRAIN_HOST_DEVICE void clear(const DepthwiseBackward& a, const DepthwiseItem& item,
                                 const ColumnStrip<T, kIn>& in) const {
    Pair<T>* to = static_cast<Pair<T>*>(a.grad_x) + (in.image - static_cast<const Pair<T>*>(a.x));
    for (int y = item.first_row; y < item.end_row; ++y) {
      for (int j = 0; j < kIn; ++j) {
        if (in.has_column(j)) to[in.at(y, j)] = Pair<T>::zero();
      }
    }
  }

  DSTRAIN_HOST_DEVICE void walk(const DepthwiseBackward& a, const DepthwiseItem& item,
                                bool counted) {
    const DepthwiseShape& s = a.shape;
    const ColumnStrip<T, kIn> in(a.x, item.sample, static_cast<int>(s.height),
                                 static_cast<int>(s.width), s.channels, pair, item.first_column);
    if (!counted) return clear(a, item, in);
    read_gate(a, item.sample);
    const int first_out = (item.first_column + s.before - Left) / S + kFirst;
    const auto out_strip = [&](const void* images) {
      return ColumnStrip<T, kOut>(images, item.sample, static_cast<int>(s.out_height),
                                  static_cast<int>(s.out_width), s.channels, pair, first_out);
    };
    const ColumnStrip<T, kOut> grad = out_strip(a.grad);
    const bool follows = a.following.y != nullptr;
    const ColumnStrip<T, kOut> out = out_strip(follows ? a.following.y : a.grad);

    // Step t has row t of the gradient and rows t * S - before + [0, S) of the input.
    const int first_step = (item.first_row + s.before) / S - (kLive - 1),
              end_step = (item.end_row - 1 + s.before) / S + 1;
    Pair<T> live[kLive][kOut];  // live[d] is row t - d of the gradient
#pragma unroll
    for (int d = 0; d < kLive; ++d) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) live[d][i] = Pair<T>::zero();
    }
    const auto read_out = [&](int t, Pair<T>(&g)[kOut], Pair<T>(&y)[kOut]) {
      grad.read(t, g);
      if (follows) out.read(t, y);
    };
    const auto read_in = [&](int t, Pair<T>(&rows)[S][kIn]) {
#pragma unroll
      for (int r = 0; r < S; ++r) {
        const int y = t * S + r - s.before;
        if (y >= item.first_row && y < item.end_row) in.read(y, rows[r]);
      }
    };
    Pair<T> next_grad[kOut], next_out[kOut] = {}, next_in[S][kIn] = {};
    read_out(first_step, next_grad, next_out);
    read_in(first_step, next_in);
#pragma unroll 1
    for (int t = first_step; t < end_step; ++t) {
#pragma unroll
      for (int d = kLive - 1; d > 0; --d) {
#pragma unroll
        for (int i = 0; i < kOut; ++i) live[d][i] = live[d - 1][i];
      }
      if (out.has_row(t)) {
        form(a, out, next_grad, next_out, live[0]);
      } else {
#pragma unroll
        for (int i = 0; i < kOut; ++i) live[0][i] = Pair<T>::zero();
      }
      Pair<T> rows[S][kIn];
#pragma unroll
      for (int r = 0; r < S; ++r) {
#pragma unroll
        for (int j = 0; j < kIn; ++j) rows[r][j] = next_in[r][j];
      }
      if (t + 1 < end_step) {
        read_out(t + 1, next_grad, next_out);
        read_in(t + 1, next_in);
      }
      const int y = t * S - s.before;
      const auto own = [&](int row) { return row >= item.first_row && row < item.end_row; };
      if (own(y)) finish_row<0>(a, in, y, rows[0], live);
      if constexpr (S == 2) {
        if (own(y + 1)) finish_row<1>(a, in, y + 1, rows[1], live);
      }
    }
  }
};

/// Calls body.operator()<Strip>() with the strip that serves the shape.
template <typename T, typename Body>
void with_strip(const Depthwise& a, const DepthwiseTiles& tiles, const Body& body) {
  const auto of_kernel = [&]<int K>(std::integral_constant<int, K>) {
    if (a.shape.stride == 2)
      return body.template operator()<DepthwiseStrip<T, K, 2, kStride2Columns>>();
    if constexpr (K == 3 && sizeof(T) == 2) {
      if (tiles.columns == 7) return body.template operator()<DepthwiseStrip<T, K, 1, 7>>();
    }
    body.template operator()<DepthwiseStrip<T, K, 1, 4>>();
  };
  a.shape.kernel == 3 ? of_kernel(std::integral_constant<int, 3>{})
                      : of_kernel(std::integral_constant<int, 5>{});
}

template <typename T, typename Body>
void with_strip(const DepthwiseBackward& a, const DepthwiseTiles& tiles, const Body& body) {
  const auto of_kernel = [&]<int K>(std::integral_constant<int, K>) {
    constexpr int Q = kStride2Columns;
    if (a.shape.stride == 2) {
      return a.shape.before % 2 == 0
                 ? body.template operator()<DepthwiseBackwardStrip<T, K, 2, 0, Q>>()
                 : body.template operator()<DepthwiseBackwardStrip<T, K, 2, 1, Q>>();
    }
    if constexpr (K == 3 && sizeof(T) == 2) {
      if (tiles.columns == 7)
        return body.template operator()<DepthwiseBackwardStrip<T, K, 1, 0, 7>>();
    }
    body.template operator()<DepthwiseBackwardStrip<T, K, 1, 0, 4>>();
  };
  a.shape.kernel == 3 ? of_kernel(std::integral_constant<int, 3>{})
                      : of_kernel(std::integral_constant<int, 5>{});
}

}  // namespace dstrain::kernels::cuda
