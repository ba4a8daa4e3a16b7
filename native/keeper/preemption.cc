#include "keeper/preemption.h"

#include <inttypes.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/channel.h"
#include "keeper/clock.h"
#include "keeper/text.h"
#include "locks/files.h"
#include "locks/heartbeat_file.h"
#include "locks/queue_slots.h"

namespace keeper {

namespace {

using namespace gpu_owner;

// Any user may write to the notice: lower bound on the time between two reads.
constexpr int64_t kMinPauseMs = 500;
// Where nothing tells.
constexpr int64_t kPollMs = 1'000;

// The request in one slot of the queue.
class Request {
 public:
  bool read(int queue, int64_t slot) {
    const ssize_t size = pread(queue, text_, sizeof text_ - 1, locks::block_offset(slot));
    if (size <= 0) return false;
    text_[size] = '\0';
    key_ = locks::order_key_in(text_, static_cast<size_t>(size));
    Buffer<48> place;
    place.add("\"place\":%" PRId64 ",", slot);
    return has(place.c_str()) && locks::is_alive(queue, locks::heartbeat_offset(slot), locks::kHeartbeatTimeoutMs);
  }

  // Requests without a tag end no lease: their class is unknown.
  bool may_preempt() const { return key_.exists && !key_.is_preemptible(); }

  bool is_on_machine() const { return has("\"scope\":null"); }

  bool wants(const char* uuid) const {
    Buffer<128> word;
    word.add("\"%s\"", uuid);
    return has(word.c_str());
  }

  // Whether its waiter says that this lease has to give way.
  bool names(long epoch) const {
    const char* list = strstr(text_, "\"preempts\":[");
    if (!list) return false;
    const size_t length = strcspn(list, "]");
    Buffer<24> number;
    number.add("%ld", epoch);
    for (const char* at = list + strlen("\"preempts\":["); at < list + length; at += strcspn(at, ",]") + 1) {
      const size_t digits = strspn(at, "0123456789");
      if (digits == number.length() && strncmp(at, number.c_str(), digits) == 0) return true;
    }
    return false;
  }

 private:
  // Quotes within texts of others have a backslash before them.
  bool has(const char* word) const { return strstr(text_, word) != nullptr; }

  locks::OrderKey key_;
  char text_[locks::kBlockSize - locks::kHeartbeatSize + 1];
};

bool needs_lease(const Options& options, const Request& request) {
  long epoch = 0;
  if (!options.record || !number_in(options.record, "generation", &epoch) || !request.names(epoch)) return false;
  for (int i = 0; i < options.leases.count && i < options.lease_files.count; ++i) {
    Buffer<112> uuid;
    add_uuid(&uuid, options.lease_files.paths[i]);
    if (uuid.length() > 0 && request.wants(uuid.c_str())) return true;
  }
  return false;
}

}  // namespace

PreemptionWatch::PreemptionWatch(const Options& options)
    : options_(options), look_at_(options.give_way.queue ? 0 : INT64_MAX) {}

void PreemptionWatch::stop() {
  look_at_ = INT64_MAX;
  watch_.reset();
}

// The file may have been replaced, so this is repeated: a watch that is there stays one.
void PreemptionWatch::arm() {
  if (!watch_) watch_.reset(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const bool is_told = watch_ && inotify_add_watch(fd(), options_.give_way.notice, IN_MODIFY) >= 0;
  look_at_ = now_ms() + (is_told ? options_.recheck : kPollMs);
}

bool PreemptionWatch::is_needed() {
  if (look_at_ == INT64_MAX) return false;
  char events[4096];
  const int64_t now = now_ms();
  bool is_told = false;
  while (watch_ && read(fd(), events, sizeof events) > 0) is_told = true;
  if (is_told && now < quiet_until_) {
    if (quiet_until_ < look_at_) look_at_ = quiet_until_;
    return false;
  }
  if (!is_told && now < look_at_) return false;
  quiet_until_ = now + kMinPauseMs;
  arm();
  const process::UniqueFd queue(locks::open_for_probe(options_.give_way.queue));
  if (!queue) return false;
  bool found = false;
  locks::QueueSlots(queue.get()).visit([&](int64_t slot) {
    Request request;
    found = request.read(queue.get(), slot) && request.may_preempt() && request.is_on_machine() &&
            needs_lease(options_, request);
    return !found;
  });
  return found;
}

}  // namespace keeper
