// What the extension needs of torch, in one place: precompiled, since reading it takes most of a compilation.
//
// One source compiles against all supported versions (2.6 to 2.13): virtual functions that only some of them have are
// declared without `override`, and calls that only some of them have are found by `requires`.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 6
#error "pawl_c10d needs torch 2.6 or later"
#endif

#ifdef __clang__
#pragma clang diagnostic ignored "-Winconsistent-missing-override"
#endif

namespace pawl {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPointer = c10::intrusive_ptr<::c10d::Work>;
using BackendPointer = c10::intrusive_ptr<::c10d::Backend>;
using StorePointer = c10::intrusive_ptr<::c10d::Store>;

}  // namespace pawl
