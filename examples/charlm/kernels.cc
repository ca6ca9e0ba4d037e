#include "kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace charlm {
namespace {

// Four floats in one register (SSE2, NEON): the one width that every machine of an architecture has.
typedef float Lanes __attribute__((vector_size(16)));

constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileColumns = 8;

Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// One 4x8 tile of the result, kept in eight registers while it is summed.
void multiply_tile(std::size_t inner, const float* left, const float* right, float* tile) {
  Lanes sum[kTileRows][2] = {};
  for (std::size_t k = 0; k < inner; ++k, left += kTileRows, right += kTileColumns) {
    const Lanes low = load(right);
    const Lanes high = load(right + 4);
    for (std::size_t r = 0; r < kTileRows; ++r) {
      const Lanes factor = {left[r], left[r], left[r], left[r]};
      sum[r][0] += factor * low;
      sum[r][1] += factor * high;
    }
  }
  std::memcpy(tile, sum, sizeof sum);
}

// Strips of four rows, within a strip column by column; the last one filled up with zeros.
void pack_left(MatrixSize size, MatrixView left, std::vector<float>& packed) {
  const std::size_t strips = (size.rows + kTileRows - 1) / kTileRows;
  packed.resize(strips * size.inner * kTileRows);
  float* out = packed.data();
  for (std::size_t strip = 0; strip < strips; ++strip) {
    const std::size_t first = strip * kTileRows;
    const std::size_t rows = std::min(kTileRows, size.rows - first);
    for (std::size_t k = 0; k < size.inner; ++k, out += kTileRows) {
      for (std::size_t r = 0; r < kTileRows; ++r) {
        out[r] = r < rows ? left.data[(first + r) * left.row_stride + k * left.column_stride] : 0.0f;
      }
    }
  }
}

void pack_right(MatrixSize size, const float* right, std::size_t first, std::size_t columns, float* out) {
  for (std::size_t k = 0; k < size.inner; ++k, out += kTileColumns) {
    const float* row = right + k * size.columns + first;
    for (std::size_t c = 0; c < kTileColumns; ++c) out[c] = c < columns ? row[c] : 0.0f;
  }
}

}  // namespace

void multiply(MatrixSize size, MatrixView left, const float* right, float* result, Workspace& workspace) {
  pack_left(size, left, workspace.left);
  workspace.right.resize(size.inner * kTileColumns);
  for (std::size_t first = 0; first < size.columns; first += kTileColumns) {
    const std::size_t columns = std::min(kTileColumns, size.columns - first);
    pack_right(size, right, first, columns, workspace.right.data());
    const float* strip = workspace.left.data();
    for (std::size_t row = 0; row < size.rows; row += kTileRows, strip += size.inner * kTileRows) {
      float tile[kTileRows * kTileColumns];
      multiply_tile(size.inner, strip, workspace.right.data(), tile);
      const std::size_t rows = std::min(kTileRows, size.rows - row);
      for (std::size_t r = 0; r < rows; ++r) {
        std::memcpy(result + (row + r) * size.columns + first, tile + r * kTileColumns, columns * sizeof(float));
      }
    }
  }
}

void transpose(const float* matrix, std::size_t rows, std::size_t columns, float* transposed) {
  constexpr std::size_t kBlock = 16;  // a cache line each way
  for (std::size_t r0 = 0; r0 < rows; r0 += kBlock) {
    for (std::size_t c0 = 0; c0 < columns; c0 += kBlock) {
      for (std::size_t c = c0; c < std::min(c0 + kBlock, columns); ++c) {
        for (std::size_t r = r0; r < std::min(r0 + kBlock, rows); ++r) {
          transposed[c * rows + r] = matrix[r * columns + c];
        }
      }
    }
  }
}

float exponential(float x) {
  if (x < -87.0f) return 0.0f;
  // x = n ln2 + r with |r| <= ln2 / 2; ln2 in two parts so that n * high is exact.
  const auto n = static_cast<std::int32_t>(x * 1.44269504f - 0.5f);
  const float r = (x - static_cast<float>(n) * 0.693359375f) + static_cast<float>(n) * 2.12194440e-4f;
  float sum = 1.0f / 5040.0f;  // Taylor to r^7: the remainder is below 1e-8
  sum = sum * r + 1.0f / 720.0f;
  sum = sum * r + 1.0f / 120.0f;
  sum = sum * r + 1.0f / 24.0f;
  sum = sum * r + 1.0f / 6.0f;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const std::uint32_t bits = static_cast<std::uint32_t>(n + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return sum * power;
}

double logarithm(double x) {
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  bits = (bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // ln m = 2 artanh((m-1)/(m+1)), and that argument is below 0.172.
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double sum = 0.0;
  for (int term = 19; term >= 1; term -= 2) sum = sum * square + 1.0 / term;
  return 2.0 * s * sum + static_cast<double>(exponent) * 0.69314718055994531;
}

}  // namespace charlm
