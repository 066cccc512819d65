"""Datasets: every sample exactly once, from any format, local or on object storage.

finding, files          which files a path means, and their bytes
formats                 one module for each: what blocks a file has, and a block as an Arrow table
index, indexing         all blocks of all files, and which of them holds a sample
indexfile               the index as one small file
schemas                 whether the columns of files fit together
columnar                pyarrow, which only this package needs: it is imported when first used
"""
