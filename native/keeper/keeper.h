#pragma once

#include <sys/types.h>

namespace keeper {

class Channel;
class Job;
struct JobState;
struct Options;

// Keeps the leases until the command and all its descendants have ended; returns this process's exit code. `socket`
// leads to the foreground process, which has the state, too.
int keep(const Options& options, int socket, pid_t foreground, JobState* state);

// Holds the leases until standard input ends or a signal comes; returns the exit code.
int hold(const Options& options);

// Leaves the reach of the terminal, and lets go of our standard descriptors, as their end may be waited for.
void detach(const Options& options, int socket, int signals);

// Gives everything back for a command that never ran, as this process could start none.
void end_unstarted(const Options& options, int exit_code);

// Starts the command as `job`. False where that fails; this has been told then.
bool start_command(const Options& options, Job* job, int signals, const Channel& channel, bool own_session);

// Carries out what the other end of the channel asks for. Returns false when the other end is closed.
bool handle_requests(Job* job, Channel* channel);

}  // namespace keeper
