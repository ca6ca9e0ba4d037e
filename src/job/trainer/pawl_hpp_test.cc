// pawl.hpp, with PAWL=off: what it adds to the C calls. The loop itself is charlm's.
#include "pawl/pawl.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace {

using pawl::Status;

class PawlHpp : public testing::Test {
 protected:
  void SetUp() override {
    setenv("PAWL", "off", 1);
    ASSERT_EQ(trainer.attach(), Status::ok);
  }
  void TearDown() override { unsetenv("PAWL"); }
  pawl::Trainer trainer;
};

TEST_F(PawlHpp, StructsNeedNoInitialiser) {
  pawl::Seat seat;
  ASSERT_EQ(trainer.recover_join(&seat), Status::ok);
  EXPECT_EQ(seat.world, 1u);
  pawl::FenceReport report;
  EXPECT_EQ(trainer.fence(&report), Status::ok);
  EXPECT_EQ(report.step, 0u);
  EXPECT_EQ(trainer.fence(), Status::ok);
  pawl::Event event;
  EXPECT_EQ(trainer.event_next(&event), Status::timeout);
}

TEST_F(PawlHpp, ListsOfATensorHaveItsLength) {
  ASSERT_EQ(trainer.recover_join(nullptr), Status::ok);
  float values[6] = {};
  pawl::TensorOptions options = pawl::replicated("weight");
  options.order = {1, 0};
  EXPECT_EQ(trainer.tensor_add("w", values, {2, 3}, options), Status::ok);
  EXPECT_EQ(trainer.tensor_add("w", values, {1, 2, 3}, options), Status::invalid);
  std::complex<double> wave = 0;
  EXPECT_EQ(pawl::dtype_of<std::complex<double>>(), PAWL_COMPLEX128);
  EXPECT_EQ(trainer.tensor_add("wave", &wave, {}), Status::ok);
  options.order = {};
  options.begin = {0};
  EXPECT_EQ(trainer.tensor_add("w", values, {2, 3}, options), Status::invalid);
}

TEST_F(PawlHpp, ValuesOfAnyLengthAreRead) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{4096}, std::size_t{4097}, std::size_t{16} << 20}) {
    const std::string value(size, 'v');
    ASSERT_EQ(trainer.rendezvous_set("key", value), Status::ok);
    std::string found = "old";
    EXPECT_EQ(trainer.rendezvous_get("key", &found, std::chrono::seconds(5)), Status::ok);
    EXPECT_TRUE(found == value) << size;
    found = "old";
    std::vector<std::string> all;
    EXPECT_EQ(trainer.rendezvous_get_all({"key", "key"}, &all, std::chrono::seconds(5)), Status::ok);
    EXPECT_EQ(all, (std::vector<std::string>{value, value}));
    EXPECT_EQ(trainer.rendezvous_try_get("key", &found), Status::ok);
    EXPECT_TRUE(found == value) << size;
  }
  std::string found = "old";
  EXPECT_EQ(trainer.rendezvous_set("key", std::string((16u << 20) + 1, 'v')), Status::invalid);
  EXPECT_EQ(trainer.rendezvous_try_get("nothing", &found), Status::timeout);
  EXPECT_EQ(found, "");
  EXPECT_EQ(trainer.rendezvous_get("nothing", &found, std::chrono::milliseconds(1)), Status::timeout);
  std::vector<std::string> all;
  EXPECT_EQ(trainer.rendezvous_get_all({"key", "nothing"}, &all, std::chrono::milliseconds(1)), Status::timeout);
  EXPECT_TRUE(all.empty());
}

TEST_F(PawlHpp, CompareSetReadsValuesOfAnyLengthAndSetsOnce) {
  const std::string first(10'000, 'a'), second(20'000, 'b');
  std::string found;
  EXPECT_EQ(trainer.rendezvous_compare_set("key", "", first, &found), Status::ok);
  EXPECT_TRUE(found == first);
  EXPECT_EQ(trainer.rendezvous_compare_set("key", "other", "short", &found), Status::ok);  // the old one is longer
  EXPECT_TRUE(found == first);
  EXPECT_EQ(trainer.rendezvous_compare_set("key", first, second, &found), Status::ok);
  EXPECT_TRUE(found == second);
  bool deleted = false;
  EXPECT_EQ(trainer.rendezvous_delete("key", &deleted), Status::ok);
  EXPECT_TRUE(deleted);
}

}  // namespace
