module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<64xf32>) -> (tensor<32xf32> {jax.result_info = "result"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %1 = stablehlo.custom_call @SparseDenseMatmulOp(%arg0, %arg1, %arg2, %arg3, %arg5, %0) {backend_config = "{\22sparse_dense_matmul_config\22: {\22max_ids_per_partition\22: 16, \22max_unique_ids_per_partition\22: 8, \22sharding_strategy\22: 1, \22pad_value\22: 2147483647}, \22device_type\22: \22DEVICE_TYPE_SPARSECORE\22}"} : (tensor<32xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<64xf32>, tensor<32xf32>) -> tensor<32xf32>
    return %1 : tensor<32xf32>
  }
}
