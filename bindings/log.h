// Forwards log records of the runtime to the Python logger "plait".
#pragma once

namespace plait::python {

// Applies the current level of the Python logger to the runtime. Call it with the GIL before work that
// may log, because Python does not report changes of a level. It only reads attributes.
void follow_log_level();

}  // namespace plait::python
