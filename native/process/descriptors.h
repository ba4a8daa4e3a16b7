// Descriptor tables of threads.
#pragma once

namespace gpu_owner::process {

// Gives the calling thread a descriptor table of its own with nothing in it but /dev/null as 0 and 1, and standard error;
// threads it creates later share that table. False where the kernel or a container's rules allow no such thing: the table is then
// the process's as before.
bool leave_descriptor_table();

// A duplicate numbered 200 or higher that survives exec, or -errno. High, because Node.js marks low inherited descriptors
// close-on-exec, and ranges below are what programs hand out to themselves.
int inheritable_duplicate(int descriptor);

}  // namespace gpu_owner::process
