#include "job/erasure/erasure_code.h"

#include <algorithm>
#include <bitset>

#include "base/text.h"
#include "job/erasure/galois.h"

namespace pawl::job {
namespace {

using Matrix = std::vector<std::vector<std::uint8_t>>;

// Of Cauchy's matrix 1 / (x + y): x is the row, y is 32 and the column, so no two of these are equal.
std::uint8_t cauchy(std::uint32_t row, std::uint32_t column) {
  return galois_inverse(static_cast<std::uint8_t>(row ^ (kFragmentsMax + column)));
}

std::uint8_t coefficient_of(std::uint32_t row, std::uint32_t column) {
  const std::uint8_t numerator = galois_multiply(cauchy(row, column), cauchy(0, 0));
  return galois_multiply(numerator, galois_inverse(galois_multiply(cauchy(0, column), cauchy(row, 0))));
}

void scale(std::vector<std::uint8_t>& row, std::uint8_t by) {
  for (std::uint8_t& value : row) value = galois_multiply(value, by);
}

void add_scaled(std::vector<std::uint8_t>& row, const std::vector<std::uint8_t>& other, std::uint8_t by) {
  for (std::size_t i = 0; i < row.size(); ++i) row[i] ^= galois_multiply(other[i], by);
}

Matrix identity(std::uint32_t size) {
  Matrix matrix(size, std::vector<std::uint8_t>(size));
  for (std::uint32_t i = 0; i < size; ++i) matrix[i][i] = 1;
  return matrix;
}

// Gauss and Jordan. False: it has no inverse.
bool invert(Matrix matrix, Matrix& inverse) {
  const auto size = static_cast<std::uint32_t>(matrix.size());
  inverse = identity(size);
  for (std::uint32_t column = 0; column < size; ++column) {
    std::uint32_t pivot = column;
    while (pivot < size && matrix[pivot][column] == 0) ++pivot;
    if (pivot == size) return false;
    std::swap(matrix[pivot], matrix[column]);
    std::swap(inverse[pivot], inverse[column]);
    const std::uint8_t by = galois_inverse(matrix[column][column]);
    scale(matrix[column], by);
    scale(inverse[column], by);
    for (std::uint32_t row = 0; row < size; ++row) {
      const std::uint8_t factor = row == column ? 0 : matrix[row][column];
      if (factor == 0) continue;
      add_scaled(matrix[row], matrix[column], factor);
      add_scaled(inverse[row], inverse[column], factor);
    }
  }
  return true;
}

}  // namespace

Result<ErasureCode> ErasureCode::make(std::uint32_t data_count, std::uint32_t parity_count) {
  if (data_count == 0 || parity_count == 0)
    return Error{Code::invalid, text("erasure code ", data_count, "+", parity_count,
                                     ": it takes at least one data and one parity fragment")};
  if (data_count > kFragmentsMax || parity_count > kFragmentsMax || data_count + parity_count > kFragmentsMax)
    return Error{Code::invalid, text("erasure code ", data_count, "+", parity_count, ": these are ",
                                     std::uint64_t{data_count} + parity_count, " fragments, at most ", kFragmentsMax,
                                     " are possible")};
  return ErasureCode(data_count, parity_count);
}

ErasureCode::ErasureCode(std::uint32_t data_count, std::uint32_t parity_count)
    : data_count_(data_count), parity_count_(parity_count) {
  for (std::uint32_t row = 0; row < parity_count; ++row) {
    for (std::uint32_t column = 0; column < data_count; ++column) coefficients_.push_back(coefficient_of(row, column));
  }
}

std::span<const std::uint8_t> ErasureCode::coefficients_of(std::uint32_t parity) const {
  return std::span(coefficients_).subspan(std::size_t{parity} * data_count_, data_count_);
}

Status ErasureCode::check_fragments(std::span<const std::uint32_t> there, std::span<const std::uint32_t> lost) const {
  std::bitset<kFragmentsMax> seen;
  for (const std::span<const std::uint32_t> some : {there, lost}) {
    for (const std::uint32_t fragment : some) {
      if (fragment >= fragment_count())
        return Error{Code::invalid, text("decode ", data_count_, "+", parity_count_, ": there is no fragment ",
                                         fragment, ", the last one is ", fragment_count() - 1)};
      if (seen[fragment])
        return Error{Code::invalid,
                     text("decode ", data_count_, "+", parity_count_, ": fragment ", fragment, " is named twice")};
      seen[fragment] = true;
    }
  }
  if (there.size() < data_count_)
    return Error{Code::not_found, text("decode ", data_count_, "+", parity_count_, ": ", there.size(),
                                       " fragments are there, ", data_count_, " are needed")};
  return {};
}

Result<DecodePlan> ErasureCode::plan_decode(std::span<const std::uint32_t> there,
                                            std::span<const std::uint32_t> lost) const {
  PAWL_TRY(check_fragments(there, lost));
  DecodePlan plan;
  plan.sources.assign(there.begin(), there.end());
  std::ranges::sort(plan.sources);  // data come first, which makes the matrix nearly that of the identity
  plan.sources.resize(data_count_);
  plan.rebuilt.assign(lost.begin(), lost.end());

  const auto row_of = [this](std::uint32_t fragment) {
    std::vector<std::uint8_t> row(data_count_);
    if (fragment < data_count_) {
      row[fragment] = 1;
    } else {
      std::ranges::copy(coefficients_of(fragment - data_count_), row.begin());
    }
    return row;
  };
  Matrix sources, data_of_sources;
  for (const std::uint32_t source : plan.sources) sources.push_back(row_of(source));
  if (!invert(std::move(sources), data_of_sources))
    return Error{Code::broken,
                 text("decode ", data_count_, "+", parity_count_, ": the sources' matrix has no inverse")};
  for (const std::uint32_t fragment : plan.rebuilt) {
    const std::vector<std::uint8_t> data = row_of(fragment);
    std::vector<std::uint8_t> row(data_count_);
    for (std::uint32_t j = 0; j < data_count_; ++j) add_scaled(row, data_of_sources[j], data[j]);
    plan.coefficients.insert(plan.coefficients.end(), row.begin(), row.end());
  }
  return plan;
}

}  // namespace pawl::job
