#include "device.h"

#include <dlfcn.h>

#include <type_traits>

namespace statebench {

struct Device::Driver {
  int (*init)(unsigned);
  int (*device)(int*, int);
  int (*retain)(void**, int);
  int (*use)(void*);
  int (*allocate)(unsigned long long*, std::size_t);
  int (*free)(unsigned long long);
  int (*allocate_host)(void**, std::size_t, unsigned);
  int (*free_host)(void*);
  int (*make_stream)(void**, unsigned);
  int (*end_stream)(void*);
  int (*finish)(void*);
  int (*upload)(unsigned long long, const void*, std::size_t, void*);
  int (*download)(void*, unsigned long long, std::size_t, void*);
};

bool Device::open(std::uint64_t bytes, std::string* why) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    *why = std::string("no CUDA driver: ") + dlerror();
    return false;
  }
  driver_ = new Driver;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) *why = std::string("the CUDA driver has no ") + name;
    return function != nullptr;
  };
  if (!find("cuInit", driver_->init) || !find("cuDeviceGet", driver_->device) ||
      !find("cuDevicePrimaryCtxRetain", driver_->retain) || !find("cuCtxSetCurrent", driver_->use) ||
      !find("cuMemAlloc_v2", driver_->allocate) || !find("cuMemFree_v2", driver_->free) ||
      !find("cuMemHostAlloc", driver_->allocate_host) || !find("cuMemFreeHost", driver_->free_host) ||
      !find("cuStreamCreate", driver_->make_stream) || !find("cuStreamDestroy_v2", driver_->end_stream) ||
      !find("cuStreamSynchronize", driver_->finish) || !find("cuMemcpyHtoDAsync_v2", driver_->upload) ||
      !find("cuMemcpyDtoHAsync_v2", driver_->download))
    return false;
  int device = 0;
  void* context = nullptr;
  const bool made = driver_->init(0) == 0 && driver_->device(&device, 0) == 0 &&
                    driver_->retain(&context, device) == 0 && driver_->use(context) == 0 &&
                    driver_->allocate(&memory_, bytes) == 0 && driver_->allocate_host(&host_, bytes, 0) == 0 &&
                    driver_->make_stream(&stream_, 1) == 0;
  if (!made) *why = "the CUDA device refuses, or has too little memory for " + std::to_string(bytes) + " bytes";
  return made;
}

Device::~Device() {
  if (stream_ != nullptr) {
    (void)driver_->finish(stream_);
    (void)driver_->end_stream(stream_);
  }
  if (host_ != nullptr) (void)driver_->free_host(host_);
  if (memory_ != 0) (void)driver_->free(memory_);
  delete driver_;
}

bool Device::upload(std::uint64_t begin, std::uint64_t bytes) {
  return driver_->upload(memory_ + begin, static_cast<const std::byte*>(host_) + begin, bytes, stream_) == 0;
}

bool Device::download(std::uint64_t begin, std::uint64_t bytes) {
  return driver_->download(static_cast<std::byte*>(host_) + begin, memory_ + begin, bytes, stream_) == 0;
}

bool Device::finish() {
  return driver_->finish(stream_) == 0;
}

}  // namespace statebench
