#include "keeper/watchdog.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/channel.h"
#include "keeper/descendants.h"
#include "keeper/exit_codes.h"
#include "keeper/job.h"
#include "keeper/keeper.h"
#include "keeper/markers.h"
#include "keeper/signals.h"
#include "keeper/text.h"

namespace keeper {

namespace {

struct Teller {
  Channel* channel;
  SharedState* shared;
  bool keeper_lost = false;  // and that isn't told yet

  void tell_of_keeper() {
    if (keeper_lost) channel->send("{\"event\":\"keeper-lost\"}");
    keeper_lost = false;
  }
};

void tell(void* receiver, const char* line, bool dispensable) {
  Teller* teller = static_cast<Teller*>(receiver);
  long signal = 0;
  // Anything before the news of the keeper's end is the command's own doing; this was most probably that end's.
  if (is_event(line, "ended") && number_in(line, "signal", &signal) && signal == SIGKILL) teller->tell_of_keeper();
  teller->channel->send(line, dispensable);
  if (is_event(line, "ended") || is_event(line, "failed")) {
    __atomic_store_n(&teller->shared->ended, 1, __ATOMIC_RELEASE);
  } else if (is_event(line, "released")) {
    __atomic_store_n(&teller->shared->released, 1, __ATOMIC_RELEASE);
  }
}

// The worker is gone, and its claim ends with this job. Others take a GPU whose marker names a dead process.
void inherit(const Options& options, Job* job) {
  job->set_worker(0);
  sign_markers(options);
  // The task is given out again after that time.
  job->terminate(options.deadline.at > 0 ? options.deadline.grace : options.grace);
}

void serve(const Options& options, Job* job, Channel* channel, int signals) {
  while (!job->released()) {
    pollfd ready[] = {{signals, POLLIN, 0}, {channel->fd(), POLLIN, 0}};
    poll(ready, 2, job->timeout());
    signalfd_siginfo info;
    while (next_signal(signals, &info)) {
      if (info.ssi_signo != SIGTERM) continue;
      // Batch systems and service managers signal all processes of a job, the command as well: what it comes to isn't
      // its own doing.
      channel->send("{\"event\":\"told\"}");
      job->terminate(options.grace);
    }
    if (ready[1].revents && !handle_requests(job, channel)) inherit(options, job);
    job->react();
  }
}

}  // namespace

int keep_task(const Options& options, SharedState* shared, pid_t worker, pid_t watchdog) {
  prctl(PR_SET_NAME, "gpu-owner-keep");
  adopt_descendants();
  const int signals = options.signals;
  Channel channel(options.control);
  // The keeper says it itself, so that it always is the first event.
  Buffer<64> line;
  line.add("{\"event\":\"keeper\",\"pid\":%d}", getpid());
  channel.send(line.c_str());
  Teller teller = {&channel, shared};
  Job job(options, {tell, &teller});
  job.set_worker(worker);
  job.set_shared_command(&shared->command);
  if (options.deadline.at > 0) job.set_deadline(options.deadline.at);
  if (job.has_expired()) {
    // The worker was stopped since it got the task, which may be another worker's by now.
    channel.send("{\"event\":\"expired\"}");
    job.failed(ETIME, "it was too late for that", kExitSystem);
  } else if (start_command(options, &job, signals, channel, true)) {
    serve(options, &job, &channel, signals);
  }
  // A stopped watchdog would keep its copies of the descriptors.
  if (getppid() == watchdog) kill(watchdog, SIGCONT);
  return 0;
}

int finish_task(const Options& options, SharedState* shared, pid_t worker, int signals, bool worker_gone) {
  Channel channel(options.control);
  Teller teller = {&channel, shared, true};
  Job job(options, {tell, &teller});
  job.set_worker(worker);
  const pid_t command = __atomic_load_n(&shared->command, __ATOMIC_ACQUIRE);
  const bool ended = !command || __atomic_load_n(&shared->ended, __ATOMIC_ACQUIRE);
  job.adopt(command, ended);
  // How it ended is worth knowing, if it did so by itself.
  if (!ended) job.react();
  teller.tell_of_keeper();
  if (worker_gone) inherit(options, &job);
  job.terminate(options.grace);
  job.react();
  serve(options, &job, &channel, signals);
  return 0;
}

}  // namespace keeper
