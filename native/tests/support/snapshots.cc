#include "support/snapshots.h"

#include "test.h"

using namespace gpu_owner::nvml;

namespace tests {

Driver& opened_driver() {
  Driver& driver = Driver::instance();
  REQUIRE_EQUAL(driver.open(simulated_nvml()).stage, Driver::Stage::ready);
  return driver;
}

void snapshot(Samples& samples, const std::vector<uint32_t>* only) {
  Driver& driver = Driver::instance();
  const std::lock_guard<std::timed_mutex> turn(driver.mutex());
  CHECK(driver.take_snapshot(samples, only, false));
}

Samples snapshot(const std::vector<uint32_t>* only) {
  Samples samples;
  snapshot(samples, only);
  return samples;
}

std::string health(const Samples& samples) {
  std::string text;
  for (const Sample& sample : samples) {
    if (!text.empty()) text += ' ';
    text += sample.health == SUCCESS ? "ok" : sample.health == kNotResponding ? "hangs" : std::to_string(sample.health);
  }
  return text;
}

}  // namespace tests
