// Sums and maxima over a workgroup of WORKGROUP invocations, in the same order every time on one device:
// each subgroup by itself, then what they found, one after the other.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

shared float reduce_partial[WORKGROUP];  // by subgroup

float workgroup_sum(float value) {
    const float mine = subgroupAdd(value);
    if (subgroupElect())
        reduce_partial[gl_SubgroupID] = mine;
    barrier();
    float sum = reduce_partial[0];
    for (uint i = 1; i < gl_NumSubgroups; ++i)
        sum += reduce_partial[i];
    barrier();  // before anyone writes reduce_partial again
    return sum;
}

float workgroup_max(float value) {
    const float mine = subgroupMax(value);
    if (subgroupElect())
        reduce_partial[gl_SubgroupID] = mine;
    barrier();
    float most = reduce_partial[0];
    for (uint i = 1; i < gl_NumSubgroups; ++i)
        most = max(most, reduce_partial[i]);
    barrier();
    return most;
}
