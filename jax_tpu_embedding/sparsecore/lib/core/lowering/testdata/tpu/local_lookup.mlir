module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<24xi32>, %arg1: tensor<24xi32>, %arg2: tensor<24xf32>, %arg3: tensor<64x16xf32>) -> (tensor<32x16xf32> {jax.result_info = "result"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %1 = stablehlo.custom_call @SparseDenseMatmulLocalOp(%arg3, %arg0, %arg1, %arg2, %0) {backend_config = "{\22device_type\22: \22DEVICE_TYPE_SPARSECORE\22}"} : (tensor<64x16xf32>, tensor<24xi32>, tensor<24xi32>, tensor<24xf32>, tensor<32x16xf32>) -> tensor<32x16xf32>
    return %1 : tensor<32x16xf32>
  }
}
