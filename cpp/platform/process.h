// This process and the machine that it runs on.
#pragma once

#include <cstdint>
#include <string>

namespace plait::platform {

int64_t process_id();

// Differs between machines that share a file system, except containers of one image; empty if
// unknown.
std::string machine_identity();

// Changes when the machine is started again; empty if unknown.
std::string boot_identity();

// Identifies the file of the library or program that contains the function `code`, and its
// version; empty if unknown.
std::string library_identity(const void* code);

// The number of physical cores that this process may use: those of its affinity mask, limited by
// the quota of its control group.
int usable_cores();

}  // namespace plait::platform
