// Records of the runtime go to Python's logger "plait".
#pragma once

namespace plait::python {

// Takes over the level that the logger has now. Called, with the GIL, before work that may log:
// Python has no way of telling when a level changes. Three attributes are read, nothing is called.
void follow_log_level();

}  // namespace plait::python
