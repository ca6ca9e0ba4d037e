// ObjectsKit: a bucket in memory with the checkpoints of a job, for tests.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/formats/native/store_manifest.h"
#include "env/files.h"
#include "env/s3/memory_objects.h"
#include "env/s3/s3_bucket.h"
#include "env/temporary_directory.h"
#include "job/persist/s3_checkpoint_store.h"

namespace pawl::job {

struct ObjectsKit {
  explicit ObjectsKit(std::uint64_t chunk) : chunk_bytes(chunk) {}

  static s3::S3Bucket open(s3::HttpTransport& transport) {
    s3::S3Options options;
    options.settings.credentials = {"id", s3::Secret("secret"), {}};
    options.settings.region = "us-east-1";
    options.settings.endpoint = "https://store";
    options.bucket = "bucket";
    options.retry = {.attempts_max = 3,
                     .wait_first = std::chrono::milliseconds(1),
                     .wait_max = std::chrono::milliseconds(2),
                     .asked_max = std::chrono::milliseconds(2)};
    return s3::S3Bucket::open(options, transport, real_clock()).value();
  }
  static std::string root() { return "s3://bucket/run"; }

  [[nodiscard]] std::unique_ptr<CheckpointStore> store() const {
    return s3_checkpoint_store(bucket, "bucket", {.chunk_bytes = chunk_bytes, .threads = 3}, objects);
  }
  // As somebody copies it to a disk: the folder of "run/step-7" and so on.
  [[nodiscard]] std::unique_ptr<TemporaryDirectory> copied() const {
    auto copy = std::make_unique<TemporaryDirectory>();
    for (const auto& [key, content] : objects->objects()) {
      const std::string path = copy->path(key.substr(std::string_view("run/").size()));
      std::filesystem::create_directories(parent_path(path));
      std::ofstream(path, std::ios::binary) << content;
    }
    return copy;
  }
  // What is of no checkpoint that is published, nor a claim; uploads that go on, too.
  [[nodiscard]] std::vector<std::string> leftovers() const {
    const auto all = objects->objects();
    std::vector<std::string> left(objects->uploads(), "an upload");
    for (const auto& [key, content] : all) {
      const std::string folder = parent_path(key), name = last_name(key);
      const auto marker = all.find(folder + "/committed");
      if (folder == "run" || name == "committed") continue;
      if (marker == all.end()) {
        left.push_back(key);
        continue;
      }
      const std::string manifest = *checkpoint::manifest_name_in(marker->second);
      const std::string attempt = manifest.substr(9, manifest.size() - 14);
      if (name != manifest && !name.ends_with(attempt + ".safetensors")) left.push_back(key);
    }
    return left;
  }

  std::uint64_t chunk_bytes;
  std::shared_ptr<s3::MemoryObjects> objects = std::make_shared<s3::MemoryObjects>("bucket");
  s3::S3Bucket bucket = open(*objects);
};

}  // namespace pawl::job
