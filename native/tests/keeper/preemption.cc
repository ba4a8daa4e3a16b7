// A preemptible lease gives way only to a request in the wait queue that names it, lives, and may have its GPUs.
#include "keeper/preemption.h"

#include <fcntl.h>

#include "keeper/arguments.h"
#include "locks/files.h"
#include "locks/heartbeat_file.h"
#include "locks/locks.h"
#include "support/directory.h"
#include "test.h"

using namespace gpu_owner;

namespace {

constexpr char kRequest[] = R"({"order":"1 0","place":0,"scope":null,"preempts":[7,123],"uuids":["GPU-a"],"note":"x"})";

// A wait queue with one request, and the lease of GPU-a with the epoch 123.
class Queue {
 public:
  Queue() : path_(tests::path_of("line")), notice_(tests::path_of("notice")), descriptor_(tests::open_file(path_)) {
    tests::write_file(notice_, "");
    options_.lease_files.paths[options_.lease_files.count++] = "/locks/GPU-a.lease";
    options_.leases.count = 1;
    options_.record = R"({"generation":123})";
    options_.give_way.queue = path_.c_str();
    options_.give_way.notice = notice_.c_str();
  }

  void take(int64_t slot) {
    CHECK_EQUAL(locks::try_lock(descriptor_, locks::Kind::ofd, locks::Mode::exclusive, {slot, 1}), 0);
  }

  bool ends_lease(std::string text, bool lives = true) {
    text.resize(locks::kBlockSize - locks::kHeartbeatSize, ' ');
    CHECK_EQUAL(locks::write_block(descriptor_, text.data(), static_cast<int64_t>(text.size())), 0);
    if (lives) {
      CHECK_EQUAL(locks::write_heartbeat(descriptor_, locks::heartbeat_offset(0)), 0);
    } else {
      const std::string beat = "1" + std::string(locks::kHeartbeatSize - 1, ' ');
      CHECK_EQUAL(locks::write_block(descriptor_, beat.data(), locks::kHeartbeatSize, locks::heartbeat_offset(0)), 0);
    }
    keeper::PreemptionWatch watch(options_);
    const bool is_needed = watch.is_needed();
    watch.stop();
    return is_needed;
  }

 private:
  const std::string path_, notice_;
  const int descriptor_;
  keeper::Options options_;
};

std::string changed(const std::string& from, const std::string& to) {
  std::string text = kRequest;
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace

TEST("a request that names a lease, lives and may have its GPUs ends it") {
  Queue queue;
  CHECK(!queue.ends_lease(kRequest));  // the slot has no lock
  queue.take(0);
  CHECK(queue.ends_lease(kRequest));
  CHECK(!queue.ends_lease(kRequest, false));
  CHECK(queue.ends_lease(changed("[7,123]", "[123]")));
  CHECK(queue.ends_lease(changed("1 0", "0 0")));
}

TEST("other requests end no lease, and damaged ones are read without harm") {
  Queue queue;
  queue.take(0);
  const std::string text = kRequest;
  const std::string others[] = {
      changed("1 0", "2 0"),
      changed("{\"order\"", "{\"user\""),
      changed("\"place\":0,", "\"place\":4096,"),
      changed("\"scope\":null", "\"scope\":\"5\""),
      changed("GPU-a", "GPU-ab"),
      changed("[7,123]", "[]"),
      changed("[7,123]", "[12,1234]"),
      changed("[7,123]", "[-123]"),
      changed("[7,123]", "[,,]"),
      changed("x", "\\\"preempts\\\":[123]").replace(text.find("[7,123]"), 7, "[]"),
      "",
      std::string(5'000, '1'),
      std::string(5'000, '['),
  };
  for (const std::string& other : others) CHECK(!queue.ends_lease(other));
  for (size_t length = 0; length < text.size(); length += 4) {
    queue.ends_lease(text.substr(0, length));
    queue.ends_lease(std::string(locks::kBlockSize - locks::kHeartbeatSize - length, ' ') + text);
  }
}
