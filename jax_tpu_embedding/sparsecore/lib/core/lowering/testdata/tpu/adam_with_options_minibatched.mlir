module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2048xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<64x16xf32>, %arg6: tensor<64x16xf32>, %arg7: tensor<64x16xf32>, %arg8: tensor<32x16xf32>, %arg9: tensor<f32>, %arg10: tensor<f32>, %arg11: tensor<f32>, %arg12: tensor<f32>, %arg13: tensor<f32>, %arg14: tensor<f32>, %arg15: tensor<f32>) -> (tensor<64x16xf32> {jax.result_info = "result[0]"}, tensor<64x16xf32> {jax.result_info = "result[1]"}, tensor<64x16xf32> {jax.result_info = "result[2]"}) {
    %0 = stablehlo.custom_call @SparseDenseMatmulGradOptimizerUpdateWithMinibatchingOp(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %arg13, %arg14, %arg15) {backend_config = "{\22sparse_dense_matmul_config\22: {\22max_ids_per_partition\22: 16, \22max_unique_ids_per_partition\22: 8, \22pad_value\22: 2147483647, \22sharding_strategy\22: 1, \22num_slot_variables\22: 2, \22num_hyperparameters\22: 7}, \22device_type\22: \22DEVICE_TYPE_SPARSECORE\22}", called_computations = [@"adam-stack"]} : (tensor<2048xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<i32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<32x16xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>
    %1 = stablehlo.get_tuple_element %0[0] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    %2 = stablehlo.get_tuple_element %0[1] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    %3 = stablehlo.get_tuple_element %0[2] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    return %1, %2, %3 : tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>
  }
  func.func private @"adam-stack"(%arg0: tensor<1x16xf32>, %arg1: tensor<1x16xf32>, %arg2: tensor<1x16xf32>, %arg3: tensor<1x16xf32>, %arg4: tensor<1x16xf32>, %arg5: tensor<1x16xf32>, %arg6: tensor<1x16xf32>, %arg7: tensor<1x16xf32>, %arg8: tensor<1x16xf32>, %arg9: tensor<1x16xf32>, %arg10: tensor<1x16xf32>) -> tuple<tensor<1x16xf32>, tensor<1x16xf32>, tensor<1x16xf32>> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %1 = stablehlo.compare GT, %arg8, %0, FLOAT : (tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xi1>
    %cst_0 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %3 = call @_where(%1, %arg8, %2) : (tensor<1x16xi1>, tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xf32>
    %4 = stablehlo.multiply %arg0, %arg0 : tensor<1x16xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.reduce(%4 init: %cst_1) applies stablehlo.add across dimensions = [1] : (tensor<1x16xf32>, tensor<f32>) -> tensor<1xf32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [0] : (tensor<1xf32>) -> tensor<1x1xf32>
    %7 = stablehlo.sqrt %6 : tensor<1x1xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<1x16xf32>
    %9 = stablehlo.maximum %8, %3 : tensor<1x16xf32>
    %10 = stablehlo.divide %3, %9 : tensor<1x16xf32>
    %11 = stablehlo.multiply %arg0, %10 : tensor<1x16xf32>
    %12 = stablehlo.multiply %arg9, %arg1 : tensor<1x16xf32>
    %13 = stablehlo.add %11, %12 : tensor<1x16xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %15 = stablehlo.subtract %14, %arg5 : tensor<1x16xf32>
    %16 = stablehlo.subtract %13, %arg2 : tensor<1x16xf32>
    %17 = stablehlo.multiply %15, %16 : tensor<1x16xf32>
    %18 = stablehlo.add %arg2, %17 : tensor<1x16xf32>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %20 = stablehlo.subtract %19, %arg6 : tensor<1x16xf32>
    %21 = stablehlo.multiply %13, %13 : tensor<1x16xf32>
    %22 = stablehlo.subtract %21, %arg3 : tensor<1x16xf32>
    %23 = stablehlo.multiply %20, %22 : tensor<1x16xf32>
    %24 = stablehlo.add %arg3, %23 : tensor<1x16xf32>
    %25 = stablehlo.multiply %arg4, %18 : tensor<1x16xf32>
    %26 = stablehlo.sqrt %24 : tensor<1x16xf32>
    %27 = stablehlo.add %26, %arg7 : tensor<1x16xf32>
    %28 = stablehlo.divide %25, %27 : tensor<1x16xf32>
    %29 = stablehlo.subtract %arg1, %28 : tensor<1x16xf32>
    %30 = stablehlo.multiply %arg10, %arg1 : tensor<1x16xf32>
    %31 = stablehlo.subtract %29, %30 : tensor<1x16xf32>
    %cst_4 = stablehlo.constant dense<-2.000000e+00> : tensor<f32>
    %cst_5 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %32 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %33 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %34 = stablehlo.clamp %32, %31, %33 : tensor<1x16xf32>
    %35 = stablehlo.abs %arg0 : tensor<1x16xf32>
    %cst_6 = stablehlo.constant dense<0x7F800000> : tensor<f32>
    %36 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %37 = stablehlo.compare LT, %35, %36, FLOAT : (tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xi1>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_8 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %38 = call @_where_0(%37, %cst_7, %cst_8) : (tensor<1x16xi1>, tensor<f32>, tensor<f32>) -> tensor<1x16xf32>
    %cst_9 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %39 = stablehlo.reduce(%38 init: %cst_9) applies stablehlo.maximum across dimensions = [1] : (tensor<1x16xf32>, tensor<f32>) -> tensor<1xf32>
    %40 = stablehlo.broadcast_in_dim %39, dims = [0] : (tensor<1xf32>) -> tensor<1x1xf32>
    %41 = stablehlo.broadcast_in_dim %40, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<1x16xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %42 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %43 = stablehlo.compare GT, %41, %42, FLOAT : (tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xi1>
    %44 = call @_where(%43, %arg1, %34) : (tensor<1x16xi1>, tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xf32>
    %45 = stablehlo.broadcast_in_dim %40, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<1x16xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %46 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %47 = stablehlo.compare GT, %45, %46, FLOAT : (tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xi1>
    %48 = call @_where(%47, %arg2, %18) : (tensor<1x16xi1>, tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xf32>
    %49 = stablehlo.broadcast_in_dim %40, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<1x16xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %50 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %51 = stablehlo.compare GT, %49, %50, FLOAT : (tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xi1>
    %52 = call @_where(%51, %arg3, %24) : (tensor<1x16xi1>, tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xf32>
    %53 = stablehlo.tuple %44, %48, %52 : tuple<tensor<1x16xf32>, tensor<1x16xf32>, tensor<1x16xf32>>
    return %53 : tuple<tensor<1x16xf32>, tensor<1x16xf32>, tensor<1x16xf32>>
  }
  func.func private @_where(%arg0: tensor<1x16xi1>, %arg1: tensor<1x16xf32>, %arg2: tensor<1x16xf32>) -> tensor<1x16xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<1x16xi1>, tensor<1x16xf32>
    return %0 : tensor<1x16xf32>
  }
  func.func private @_where_0(%arg0: tensor<1x16xi1>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<1x16xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %2 = stablehlo.select %arg0, %0, %1 : tensor<1x16xi1>, tensor<1x16xf32>
    return %2 : tensor<1x16xf32>
  }
}
