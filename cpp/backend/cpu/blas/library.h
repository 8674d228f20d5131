// OpenBLAS, which is loaded when it is first needed. A build needs neither the library nor its
// headers, and a wheel uses the library of the machine that it runs on.
//
// All functions may be called from several threads at once.
#pragma once

namespace plait::cpu {

// Returns the version and the options of OpenBLAS, as it describes them; null if it cannot be used.
const char* openblas_description();
// Returns why OpenBLAS cannot be used; null if it can.
const char* openblas_problem();

// y += x w^T for rows of floats without gaps: x [rows, columns], w [outputs, columns],
// y [rows, outputs]. Computes in the calling thread only. Requires that OpenBLAS can be used.
void multiply_by_openblas(int rows, int outputs, int columns, const float* x, const float* w,
                          float* y);

}  // namespace plait::cpu
