#pragma once

namespace keeper {

// The part of `gpu-owner submit` that waits. Starts the program as a child, with the descriptor of a pipe in
// GPU_OWNER_SUBMITTER. The child writes there once its job is announced and goes on without this process: returns 0
// then. Otherwise returns the child's exit code, or ends by its signal. If this process is killed before, so is the
// child.
int submit(char** program);

}  // namespace keeper
