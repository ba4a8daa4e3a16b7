#include "keeper/keeper.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/channel.h"
#include "keeper/clock.h"
#include "keeper/command.h"
#include "keeper/descendants.h"
#include "keeper/descriptors.h"
#include "keeper/exit_codes.h"
#include "keeper/job.h"
#include "keeper/leases.h"
#include "keeper/markers.h"
#include "keeper/messages.h"
#include "keeper/signals.h"
#include "keeper/text.h"

namespace keeper {

namespace {

void send_event(void* channel, const char* line, bool dispensable) {
  static_cast<Channel*>(channel)->send(line, dispensable);
}

// Whether the front goes on with the job; false: it was killed.
bool front_goes_on(Channel* channel) {
  while (true) {
    const bool open = channel->receive();
    long number = 0;
    while (const char* line = channel->next_line()) {
      if (number_in(line, "requeued", &number)) return true;
    }
    if (!open) return false;
    pollfd ready = {channel->fd(), POLLIN, 0};
    poll(&ready, 1, -1);
  }
}

}  // namespace

void detach(const Options& options, int socket, int signals) {
  setsid();
  // A job's output stays open for its next start.
  const bool keeps_output = options.requeue.program && options.job >= 0;
  redirect_to_null(STDIN_FILENO, keeps_output ? STDIN_FILENO : STDERR_FILENO);
  close_others(options, Keep::leases_and_placeholder, socket, signals);
}

void end_unstarted(const Options& options, int exit_code) {
  JobState state;
  state.front = getpid();
  state.exit_code = exit_code;
  state.ended = calendar_time_ms();
  write_job_state(options, state);
  unlock(options);
  start_then(options, &state);
}

bool start_command(const Options& options, Job* job, int signals, const Channel& channel, bool own_session) {
  if (options.directory && chdir(options.directory) != 0) {
    const int error = errno;
    Buffer<256> text;
    text.add("the directory to start in can't be entered: %s", strerror(error));
    job->failed(error, text.c_str(), kExitNotExecutable);
    return false;
  }
  Command command;
  const bool forked = command.fork(options, own_session);
  if (!forked) {
    job->failed(errno, "no process can be started", kExitSystem);
    return false;
  }
  // The pipes to the command stay open until it runs, so what isn't ours is closed only then.
  job->begin(command.pid());
  if (const int error = command.let_go()) {
    waitpid(command.pid(), nullptr, 0);
    detach(options, channel.fd(), signals);
    job->failed(error, execution_error(options.command[0], error), execution_exit_code(error));
    return false;
  }
  detach(options, channel.fd(), signals);
  job->started();
  return true;
}

bool handle_requests(Job* job, Channel* channel) {
  const bool open = channel->receive();
  while (const char* line = channel->next_line()) {
    long number = 0;
    if (number_in(line, "terminate", &number)) {
      job->terminate(number);
    } else if (number_in(line, "cancel", &number)) {
      job->cancel(number);
    } else if (number_in(line, "signal", &number) && number > 0 && number <= SIGRTMAX) {
      job->signal_command(static_cast<int>(number));
    } else if (number_in(line, "deadline", &number)) {
      job->set_deadline(number);
    }
  }
  if (!open) channel->close();
  return open;
}

int keep(const Options& options, int socket, pid_t foreground, JobState* state) {
  prctl(PR_SET_NAME, "gpu-owner-keep");
  adopt_descendants();
  const int signals = options.signals;
  Channel channel(socket);
  Job job(options, {send_event, &channel});
  job.set_foreground(foreground);
  state->keeper = getpid();
  job.set_state(state);
  sign_markers(options);
  start_command(options, &job, signals, channel, false);
  while (!job.released()) {
    pollfd ready[] = {{signals, POLLIN, 0},
                      {channel.fd(), POLLIN, 0},
                      {job.output_watch(), POLLIN, 0},
                      {job.preemption_watch(), POLLIN, 0},
                      {job.meter_watch(), POLLIN, 0}};
    poll(ready, 5, job.timeout());
    // No other signal matters here: a job's keeper that could be ended by one would be none.
    signalfd_siginfo info;
    while (next_signal(signals, &info)) {
      if (const int64_t grace = cancel_grace(info); grace >= 0) job.cancel(grace);
      if (const int64_t limit = extended_limit(info); limit > 0) job.extend(limit);
    }
    if (ready[1].revents) handle_requests(&job, &channel);
    job.react();
  }
  if (state->requeued >= 0) {
    // A command that a terminal waits for doesn't restart without it.
    if (options.job < 0 || front_goes_on(&channel)) return 0;
    // The front ended with the command, whose work went on.
    if (!state->failed) {
      say("preempted: another request needed %s. %s restarts when GPUs are free", options.gpus, options.command_name());
    }
    return start_again(options, state);
  }
  start_then(options, state);
  return 0;
}

}  // namespace keeper
