// Sums and maxima over a workgroup of WORKGROUP invocations. The order is always the same on one
// device: first within each subgroup, then over the subgroups in order.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

shared float reduce_partial[WORKGROUP];  // [subgroup]

float workgroup_sum(float value) {
    const float own = subgroupAdd(value);
    if (subgroupElect())
        reduce_partial[gl_SubgroupID] = own;
    barrier();
    float sum = reduce_partial[0];
    for (uint i = 1; i < gl_NumSubgroups; ++i)
        sum += reduce_partial[i];
    barrier();  // reduce_partial may be written again after this
    return sum;
}

float workgroup_max(float value) {
    const float own = subgroupMax(value);
    if (subgroupElect())
        reduce_partial[gl_SubgroupID] = own;
    barrier();
    float result = reduce_partial[0];
    for (uint i = 1; i < gl_NumSubgroups; ++i)
        result = max(result, reduce_partial[i]);
    barrier();
    return result;
}
