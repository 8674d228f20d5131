// Sums and maxima over a workgroup of WORKGROUP invocations (a power of two), in the same order every
// time.

shared float reduce_partial[WORKGROUP];

float workgroup_sum(float value) {
    const uint i = gl_LocalInvocationIndex;
    reduce_partial[i] = value;
    barrier();
    for (uint width = WORKGROUP / 2; width > 0; width /= 2) {
        if (i < width)
            reduce_partial[i] += reduce_partial[i + width];
        barrier();
    }
    const float sum = reduce_partial[0];
    barrier();  // before anyone writes reduce_partial again
    return sum;
}

float workgroup_max(float value) {
    const uint i = gl_LocalInvocationIndex;
    reduce_partial[i] = value;
    barrier();
    for (uint width = WORKGROUP / 2; width > 0; width /= 2) {
        if (i < width)
            reduce_partial[i] = max(reduce_partial[i], reduce_partial[i + width]);
        barrier();
    }
    const float most = reduce_partial[0];
    barrier();
    return most;
}
