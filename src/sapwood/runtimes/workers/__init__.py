"""All cores of one machine: several processes on one data folder, each with a part of the trees."""
