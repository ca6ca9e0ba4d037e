// ErasureCode: how m parity fragments are made of k data fragments, such that any k of the k+m give all of them back.
//
// Systematic: fragments 0 .. k-1 are the data as it is. Parity p is the sum of coefficient(p, j) times data j, byte by byte in
// GF(2^8) (galois.h). The coefficients are a Cauchy matrix (Blömer and others 1995, "An XOR-Based Erasure-Resilient Coding
// Scheme"), every square part of which can be inverted. Its columns, then its rows, are divided so that the first row and
// the first column are ones (Plank and Xu 2006, "Optimizing Cauchy Reed-Solomon Codes"), which changes nothing about that.
// So the first parity is the exclusive or of the data: k+1 is RAIM5's code, and 1+m are copies. A coefficient depends on
// neither k nor m: another parity, or fragments of zeros that are left out, changes no parity that is there.
// Pure and thread-safe. Does not touch bytes (parity.h) or place fragments (redundancy/protection.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace pawl::job {

inline constexpr std::uint32_t kFragmentsMax = 32;

// How fragments that are there make up those that aren't: row by row, one coefficient for each source.
struct DecodePlan {
  std::vector<std::uint32_t> sources;      // k of the fragments that are there: data first, each kind ascending
  std::vector<std::uint32_t> rebuilt;      // as asked for
  std::vector<std::uint8_t> coefficients;  // [row of rebuilt * sources.size() + source]
};

class ErasureCode {
 public:
  // k = data_count, m = parity_count. Fails: `invalid` if one is 0, or k+m is more than 32.
  [[nodiscard]] static Result<ErasureCode> make(std::uint32_t data_count, std::uint32_t parity_count);

  [[nodiscard]] std::uint32_t data_count() const { return data_count_; }
  [[nodiscard]] std::uint32_t parity_count() const { return parity_count_; }
  [[nodiscard]] std::uint32_t fragment_count() const { return data_count_ + parity_count_; }
  // Row p of all: one for each data fragment. p < parity_count().
  [[nodiscard]] std::span<const std::uint8_t> coefficients_of(std::uint32_t parity) const;
  [[nodiscard]] std::span<const std::uint8_t> coefficients() const { return coefficients_; }  // row by row

  // How to rebuild the fragments `lost` (data or parity) from those that are `there`, in any order. Inverts a matrix of k x k:
  // some 10 us for 28+4. Keep the plan: it serves all stripes that have lost the same fragments.
  // Fails: `invalid` if a fragment is named twice, or there is no such one; `not_found` if fewer than k are there.
  [[nodiscard]] Result<DecodePlan> plan_decode(std::span<const std::uint32_t> there,
                                               std::span<const std::uint32_t> lost) const;

 private:
  ErasureCode(std::uint32_t data_count, std::uint32_t parity_count);
  [[nodiscard]] Status check_fragments(std::span<const std::uint32_t> there, std::span<const std::uint32_t> lost) const;
  std::uint32_t data_count_;
  std::uint32_t parity_count_;
  std::vector<std::uint8_t> coefficients_;
};

}  // namespace pawl::job
