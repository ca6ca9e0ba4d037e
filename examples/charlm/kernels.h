// The arithmetic of the model: plain loops in a fixed order.
//
// Every result is the same on every machine and for every batch of threads: sums run in one order, no fused
// multiply-add, no libm (its exp differs between processors). Pure; each thread its own Workspace.
#pragma once

#include <cstddef>
#include <vector>

namespace charlm {

// A matrix in memory, by strides in elements; a transposed one is the same memory with the strides exchanged.
struct MatrixView {
  const float* data;
  std::size_t row_stride;
  std::size_t column_stride;
};

// Packed copies of the operands; grows to the largest multiplication and stays.
struct Workspace {
  std::vector<float> left;
  std::vector<float> right;
};

struct MatrixSize {
  std::size_t rows;     // of the result
  std::size_t columns;  // of the result
  std::size_t inner;    // summed over, in ascending order
};

// result = left * right. `right` and `result` are row-major and dense; `result` overlaps neither operand.
void multiply(MatrixSize size, MatrixView left, const float* right, float* result, Workspace& workspace);

// transposed[c][r] = matrix[r][c], both dense.
void transpose(const float* matrix, std::size_t rows, std::size_t columns, float* transposed);

// e^x for x <= 0 to about 1e-7 relative; 0 below -87.
[[nodiscard]] float exponential(float x);
// Natural logarithm of a positive, normal x.
[[nodiscard]] double logarithm(double x);

}  // namespace charlm
