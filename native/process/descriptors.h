// Descriptors that are handed on.
#pragma once

namespace gpu_owner::process {

// A duplicate numbered 200 or higher that survives exec, or -errno. High, because Node.js marks low inherited descriptors
// close-on-exec, and ranges below are what programs hand out to themselves.
int inheritable_duplicate(int descriptor);

}  // namespace gpu_owner::process
